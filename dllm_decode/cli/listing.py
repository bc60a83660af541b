"""The commands that list samplers, caches, verifiers, schedules or models."""

import argparse
import tomllib
from collections.abc import Mapping
from pathlib import Path

from dllm_decode import CachePolicy, Verifier, blocks, caches, verify
from dllm_decode.models.families import FAMILIES
from dllm_decode.settings.name_table import print_table
from dllm_decode.settings.options import line_of
from samplers import ALL_SAMPLERS

SAID = tomllib.loads((Path(__file__).parent / "help/lists.toml").read_text(encoding="utf-8"))
"""What commands say about the embedded models, and the last lines of lists."""


def show(options: argparse.Namespace) -> int:
    """Prints all plug-ins of a kind or all models, one per line, and how to name one."""
    print_table(entries(options.name), SAID["ends"][options.name])
    return 0


def entries(kind: str) -> Mapping[str, str]:
    """Returns the names of a kind with their descriptions of one line."""
    if kind == "models":
        families = {n: f"Family {fam.name}: {fam.architecture}." for n, fam in FAMILIES.items()}
        return {**SAID["embedded"], **families}
    classes = {
        "samplers": ALL_SAMPLERS,
        "schedules": blocks.ALL_SCHEDULES,
        "caches": [vars(caches)[name] for name in caches.__all__],
        "verifiers": [vars(verify)[name] for name in verify.__all__],
    }[kind]
    bases = {"caches": CachePolicy, "verifiers": Verifier}
    base = bases.get(kind, object)
    return {cls.__name__: line_of(cls) for cls in classes if issubclass(cls, base) and cls != base}
