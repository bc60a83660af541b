"""Shows the progress of a task: a bar on a terminal, elsewhere a line at times."""

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

LINE_EVERY_S = 20.0


class ProgressBar:
    """A progress bar; use it as a context manager.

    Args:
        console: Where to write; nothing is drawn on a quiet one.
        label: Text in front of every line.
        total: Amount of work, in any unit.
    """

    def __init__(self, console: Console, label: str, total: float = 1.0) -> None:
        self._console = console
        self._label = label
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(),
            TextColumn("{task.percentage:>5.1f} %"), TextColumn("{task.fields[words]}"),
            TimeRemainingColumn(), console=console, disable=not console.is_terminal,
        )  # fmt: skip
        self._bar.add_task(label, total=total, words="")
        self._last_line_s = float("-inf")

    def __enter__(self) -> "ProgressBar":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def advance(self, done: float = 1.0) -> None:
        """Adds to the amount that is done."""
        self.update(self._bar.tasks[0].completed + done)

    def update(self, completed: float, words: str = "") -> None:
        """Shows the total amount that is done, with a few words."""
        task = self._bar.tasks[0]
        self._bar.update(task.id, completed=completed, words=words)
        now_s = time.perf_counter()
        if self._console.is_terminal or now_s - self._last_line_s < LINE_EVERY_S:
            return
        self._last_line_s = now_s
        left_s = task.time_remaining
        left = "" if left_s is None else f"{left_s / 60:.1f} min left"
        self.say(", ".join(filter(None, (f"{task.percentage:5.1f} %", words, left))))

    def say(self, text: str) -> None:
        """Writes a line, above the bar if there is one."""
        self._console.print(f"{self._label}: {text}", highlight=False, soft_wrap=True)
