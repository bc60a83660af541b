"""The commands that list samplers, caches, verifiers, schedules, models or tasks."""

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
from eval.runs.names import JSON_LINES, LISTS, PARALLEL_BENCH, TASKS
from eval.tasks.jsonl import JsonLines
from eval.tasks.lists import ListTask
from eval.tasks.parallelbench import ParallelBench
from samplers import ALL_SAMPLERS

_SAID = tomllib.loads((Path(__file__).parent / "help/lists.toml").read_text(encoding="utf-8"))


def show(options: argparse.Namespace) -> int:
    """Shows all plug-ins, models or tasks, each with a line, and how to name one."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for name, line in entries(options.name).items():
        table.add_row(Text(name, style="bold"), Text(line))
    console = Console()
    console.print(table)
    console.print(f"\n{_SAID['ends'][options.name]}", markup=False, highlight=False)
    return 0


def entries(kind: str) -> Mapping[str, str]:
    """Returns each name of a kind with its line."""
    if kind == "models":
        families = {n: f"Family {one.name}: {one.architecture}." for n, one in FAMILIES.items()}
        return {**_SAID["embedded"], **families}
    if kind == "tasks":
        others = {f"{LISTS}KEYWORD": ListTask, f"{JSON_LINES}FILE": JsonLines,
                  f"{PARALLEL_BENCH}FOLDER#TASK": ParallelBench}  # fmt: skip
        return {name: _line_of(task) for name, task in {**TASKS, **others}.items()}
    found = {
        "samplers": ALL_SAMPLERS,
        "schedules": blocks.ALL_SCHEDULES,
        "caches": [vars(caches)[name] for name in caches.__all__],
        "verifiers": [vars(verify)[name] for name in verify.__all__],
    }[kind]
    bases = {"caches": CachePolicy, "verifiers": Verifier}
    base = bases.get(kind, object)
    return {one.__name__: _line_of(one) for one in found if issubclass(one, base) and one != base}


def _line_of(documented: object) -> str:
    return (inspect.getdoc(documented) or "").partition("\n")[0]
