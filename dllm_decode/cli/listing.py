"""The commands that list samplers, caches, verifiers, schedules or models."""

import argparse
import inspect
import tomllib
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from dllm_decode import CachePolicy, Verifier, blocks, caches, verify
from dllm_decode.models.families import FAMILIES
from samplers import ALL_SAMPLERS

SAID = tomllib.loads((Path(__file__).parent / "help/lists.toml").read_text(encoding="utf-8"))
"""What commands say about the embedded models, and the last lines of lists."""


def show(options: argparse.Namespace) -> int:
    """Prints all plug-ins of a kind or all models, one per line, and how to name one."""
    print_table(entries(options.name), SAID["ends"][options.name])
    return 0


def print_table(lines: Mapping[str, str], end: str) -> None:
    """Prints names with their descriptions, then `end`, which says how to name one."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for name, line in lines.items():
        table.add_row(Text(name, style="bold"), Text(line))
    console = Console()
    console.print(table)
    console.print(f"\n{end}", markup=False, highlight=False)


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


def line_of(documented: object) -> str:
    """Returns the first line of a docstring."""
    return (inspect.getdoc(documented) or "").partition("\n")[0]
