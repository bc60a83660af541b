"""Progress of the parts of a command."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Advance = Callable[[int], None]
"""Told how much more is done."""


@contextmanager
def bar(console: Console, label: str, total: int) -> Iterator[Advance]:
    """Shows how far something is.

    Args:
        console: Where to; nothing is drawn on a quiet one.
        label: In front of the bar.
        total: How much there is to do.
    """
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(label, total=total)
        yield lambda done: progress.advance(task, done)
