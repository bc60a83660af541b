"""Progress of a run: a bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Sequence
from datetime import timedelta

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from dllm_decode import StepEvent
from eval.metrics.statistics import mean
from eval.runs.records import Record, score_of

# Looking at the canvas waits for the device: often enough to see, too seldom to slow it down.
_LOOK_EVERY_S = 0.25
_LINE_EVERY_S = 5.0


class Sums:
    """Running sums of one setting, with the records of earlier runs; speed in seconds without."""

    def __init__(self, num_examples: int, done: Sequence[Record] = ()) -> None:
        self.num_examples = num_examples
        self.num_done = self._num_errors = self._num_tokens = self._nfe = 0
        self._scores: list[float] = []
        self.add(done)
        self._tokens_before = self._num_tokens
        self._started = time.monotonic()

    def add(self, records: Sequence[Record]) -> None:
        """Counts finished examples."""
        self.num_done += len(records)
        finished = [record for record in records if record["error"] is None]
        self._num_errors += len(records) - len(finished)
        self._num_tokens += sum(record["length"] for record in finished)
        self._nfe += sum(record["nfe"] for record in finished)
        scores = map(score_of, finished)
        self._scores += [score for score in scores if score is not None]

    def words(self) -> str:
        """Returns accuracy, speed and errors so far, in words."""
        parts = [f"accuracy {mean(self._scores):.3f}"] if self._scores else []
        if self._nfe:
            parts.append(f"{self._num_tokens / self._nfe:.2f} tokens/forward")
        num_tokens = self._num_tokens - self._tokens_before
        if num_tokens:
            elapsed_s = max(1e-9, time.monotonic() - self._started)
            parts.append(f"{num_tokens / elapsed_s:.0f} tokens/s")
        if self._num_errors:
            parts.append(f"{self._num_errors} errors")
        return ", ".join(parts)

    def short(self) -> str:
        """Returns accuracy and errors in at most 20 characters: bars have little room."""
        right = f"acc {mean(self._scores):.3f} " if self._scores else ""
        return (right + f"{self._num_errors} errors" * bool(self._num_errors)).strip()


class Reporter:
    """Follows a run, also as an observer of its decodes; shows nothing on a quiet console.

    On a terminal there are label, bar, count, running accuracy and time left, within 80 columns.
    The bar also moves within a batch, as positions are committed. Long labels lose their end. A
    second bar shows the whole of several settings; a setting that is complete becomes a line above.
    Elsewhere a line is written when a setting starts and ends, and every few seconds between.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        label = Column(ratio=1, no_wrap=True, overflow="ellipsis", min_width=12)
        self._bar = Progress(
            TextColumn("{task.description}", table_column=label, markup=False),
            BarColumn(bar_width=12),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[words]}", table_column=Column(no_wrap=True)),
            TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
            console=console, expand=True, disable=not console.is_terminal,
        )  # fmt: skip
        # Until `expect` is called, nobody knows how many examples there are; the default is 100.
        self._all = self._bar.add_task("", total=None, words="", visible=False)
        self._task: TaskID | None = None
        self._label, self._sums = "", Sums(0)
        self._num_settings = self._num_begun = 0
        self._started = self._written = self._looked = 0.0

    def __enter__(self) -> "Reporter":
        self._bar.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._bar.stop()

    def expect(self, num_settings: int, num_examples: int) -> None:
        """Announces the settings, and the examples of all that this process will decode."""
        self._num_settings, self._started = num_settings, time.monotonic()
        self._bar.update(self._all, total=num_examples, visible=num_settings > 1)

    def begin(self, label: str, num_examples: int, done: Sequence[Record]) -> None:
        """Starts the display of one setting.

        `num_examples` are those of this process; `done` are their records from earlier runs.
        """
        if self._task is not None:
            self._bar.remove_task(self._task)
            if self._console.is_terminal:
                self._say(f"{self._label}: {self._sums.words()}")
        self._label, self._sums = label, Sums(num_examples, done)
        self._num_begun += 1
        self._bar.update(self._all, description=self._place())
        self._task = self._bar.add_task(
            label, total=num_examples, completed=len(done), words=self._sums.short()
        )
        self._write()

    def add(self, records: Sequence[Record]) -> None:
        """Counts finished examples."""
        self._sums.add(records)
        self._move(self._sums.num_done)
        self._bar.advance(self._all, len(records))
        is_finished = self._sums.num_done == self._sums.num_examples
        if is_finished or time.monotonic() - self._written > _LINE_EVERY_S:
            self._write()

    def __call__(self, event: StepEvent) -> None:
        """Counts tokens within a batch."""
        now = time.monotonic()
        if not self._console.is_terminal or now - self._looked < _LOOK_EVERY_S:
            return
        self._looked = now
        left = event.after.unfinished.sum(-1) / event.after.gen_lengths
        # Rows of this batch that have left the round are finished, but not yet counted.
        self._move(min(self._sums.num_examples, self._sums.num_done + float((1.0 - left).sum())))

    def _move(self, completed: float) -> None:
        if self._task is not None:
            self._bar.update(self._task, completed=completed, words=self._sums.short())

    def _write(self) -> None:
        if self._console.is_terminal:
            return
        sums, whole, left = self._sums, self._bar.tasks[0], ""
        if whole.completed and whole.remaining:
            left_s = (time.monotonic() - self._started) / whole.completed * whole.remaining
            left = f"about {timedelta(seconds=round(left_s))} left"
        place = ": ".join(filter(None, (self._place(), self._label)))
        told = ", ".join(filter(None, (sums.words(), left)))
        self._say(f"{place}: {sums.num_done}/{sums.num_examples} {told}".rstrip())
        self._written = time.monotonic()

    def _say(self, line: str) -> None:
        folds = self._console.is_terminal
        self._console.print(line, markup=False, highlight=False, soft_wrap=not folds)

    def _place(self) -> str:
        """Returns which setting of how many is decoded, in words; empty for a single one."""
        several = self._num_settings > 1
        return f"setting {self._num_begun} of {self._num_settings}" if several else ""


SILENT = Reporter(Console(quiet=True, force_terminal=False))
