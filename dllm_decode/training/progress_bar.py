"""Shows how far something is: a bar on a terminal, a line now and then elsewhere."""

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from dllm_decode.training.loop import Report

LINE_EVERY_S = 20.0


class ProgressBar:
    """A bar, and an observer for `train`; use as a context manager.

    Args:
        console: Where to write; nothing is drawn on a quiet one.
        label: In front of every line.
        total: How much there is to do; for `train`: 1.
    """

    def __init__(self, console: Console, label: str, total: int | float = 1.0) -> None:
        self._console = console
        self._label = label
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(),
            TextColumn("{task.percentage:>5.1f} %"), TextColumn("{task.fields[measured]}"),
            TimeRemainingColumn(), console=console, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task(label, total=total, measured="")
        self._last_line = float("-inf")

    def __enter__(self) -> "ProgressBar":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def advance(self, done: int | float) -> None:
        """Shows that so much more is done."""
        self._bar.advance(self._task, done)

    def __call__(self, report: Report) -> None:
        """Shows a report."""
        measured = f"loss {report.loss:.3f}, {report.samples_per_s:,.0f} samples/s"
        self._bar.update(self._task, completed=report.spent, measured=measured)
        if self._console.is_terminal or time.perf_counter() - self._last_line < LINE_EVERY_S:
            return
        self._last_line = time.perf_counter()
        progress = report.progress
        left_s = progress.elapsed_s * (1 / report.spent - 1) if report.spent else 0.0
        self.say(
            f"{100 * report.spent:5.1f} %, step {progress.step:,}, {progress.samples:,} samples, "
            f"{measured}, {left_s / 60:.1f} min left"
        )

    def say(self, text: str) -> None:
        """Writes a line, above the bar if there is one."""
        self._console.print(f"{self._label}: {text}", highlight=False, soft_wrap=True)
