"""The commands that list samplers, caches, verifiers, schedules or models."""

import argparse
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from dllm_decode import CachePolicy, Verifier, blocks, caches, verify
from dllm_decode.models.families import FAMILIES
from dllm_decode.settings.name_table import print_table
from dllm_decode.settings.options import line_of
from samplers import ALL_SAMPLERS

SAID = tomllib.loads((Path(__file__).parent / "help/lists.toml").read_text(encoding="utf-8"))
"""What commands say about the embedded models, and the last lines of lists."""

_PACKAGES: Mapping[str, tuple[ModuleType, type]] = {
    "schedules": (blocks, blocks.BlockSchedule),
    "caches": (caches, CachePolicy),
    "verifiers": (verify, Verifier),
}


def show(options: argparse.Namespace) -> int:
    """Prints all plug-ins of a kind or all models, one per line, and how to name one."""
    print_table(entries(options.name), SAID["ends"][options.name])
    return 0


def entries(kind: str) -> Mapping[str, str]:
    """Returns the names of a kind with their descriptions of one line."""
    if kind == "models":
        families = {n: f"Family {fam.name}: {fam.architecture}." for n, fam in FAMILIES.items()}
        return {**SAID["embedded"], **families}
    if kind == "samplers":
        return {cls.__name__: line_of(cls) for cls in ALL_SAMPLERS}
    package, base = _PACKAGES[kind]
    members = [vars(package)[name] for name in package.__all__]
    classes = [cls for cls in members if isinstance(cls, type) and issubclass(cls, base)]
    return {cls.__name__: line_of(cls) for cls in classes if cls != base}
