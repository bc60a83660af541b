"""The command that lists tasks."""

import argparse
from collections.abc import Mapping

from dllm_decode.settings.name_table import print_table
from dllm_decode.settings.options import line_of
from eval.runs.task_addresses import JSON_LINES, LISTS, TASKS
from eval.tasks.jsonl import JsonLines
from eval.tasks.lists import ListTask
from eval.tasks.parallelbench import PARALLEL_BENCH, ParallelBench

_END = '"word_problems?split=test&limit=200"; options of addresses: docs/evaluation.md'


def show(options: argparse.Namespace) -> int:
    """Shows all tasks, each with a line, and how to name one."""
    print_table(entries(), _END)
    return 0


def entries() -> Mapping[str, str]:
    """Returns each name of a task with its line."""
    others = {f"{LISTS}KEYWORD": ListTask, f"{JSON_LINES}FILE": JsonLines,
              f"{PARALLEL_BENCH}FOLDER#TASK": ParallelBench}  # fmt: skip
    return {name: line_of(task) for name, task in {**TASKS, **others}.items()}
