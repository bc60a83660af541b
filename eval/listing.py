"""The commands that list samplers, caches, verifiers, schedules, models or tasks."""

import argparse
import inspect
from collections.abc import Mapping

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

_EMBEDDED = {
    "mini": "Embedded: masked diffusion, arithmetic word problems.",
    "mini-ar": "Embedded: causal, the same problems; a target of verifiers.",
    "mini-lists": "Embedded: masked diffusion, lists of words.",
    "mini-long": "Embedded: masked diffusion in blocks, long answers (ledgers).",
    "mini-long-ar": "Embedded: causal, the same ledgers.",
    "mini-long-parallel": "Embedded: `mini-long`, distilled into fewer forwards.",
    "mini-uniform": "Embedded: a DiffusionGemma (uniform state), the problems of `mini`.",
}
_ENDS = {
    "samplers": '--sampler "LocalLeap(radius=6)"; arguments and papers: docs/samplers.md',
    "caches": '--cache "DualCache(refresh_every=8)"; how exact each is: docs/caches.md',
    "verifiers": '--verifier "SelfVerify(4)"; guarantees of each: docs/verifiers.md',
    "schedules": '--blocks "MultiBlock(16)"; what each opens: docs/blocks.md',
    "models": "--model mini, a folder, or a hub id of one of the families; ids: docs/models.md",
    "tasks": '"word_problems?split=test&limit=200"; options of addresses: docs/evaluation.md',
}


def show(options: argparse.Namespace) -> int:
    """Shows all plug-ins, models or tasks, each with a line, and how to name one."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for name, line in entries(options.name).items():
        table.add_row(Text(name, style="bold"), Text(line))
    console = Console()
    console.print(table)
    console.print(f"\n{_ENDS[options.name]}", markup=False, highlight=False)
    return 0


def entries(kind: str) -> Mapping[str, str]:
    """Returns each name of a kind with its line."""
    if kind == "models":
        families = {n: f"Family {one.name}: {one.architecture}." for n, one in FAMILIES.items()}
        return _EMBEDDED | families
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
