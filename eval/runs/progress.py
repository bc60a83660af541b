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
from eval.runs.lines import Record

# Looking at the canvas waits for the device: often enough to see, too seldom to slow it down.
_LOOK_EVERY_S = 0.25
_LINE_EVERY_S = 5.0


class Reporter:
    """Follows a run, also as an observer of its decodes; this one shows nothing."""

    def __enter__(self) -> "Reporter":
        return self

    def __exit__(self, *raised: object) -> None:
        """Ends the display."""

    def expect(self, num_settings: int, num_examples: int) -> None:
        """Announces the settings, and the examples of all that this process will decode."""

    def begin(self, label: str, num_examples: int, done: Sequence[Record]) -> None:
        """Starts the display of one setting.

        `num_examples` are those of this process; `done` are their records from earlier runs.
        """

    def add(self, records: Sequence[Record]) -> None:
        """Counts finished examples."""

    def __call__(self, event: StepEvent) -> None:
        """Counts tokens within a batch."""


SILENT = Reporter()


class Sums:
    """Running sums of one setting, with the records of earlier runs; speed in seconds without."""

    def __init__(self, num_examples: int, done: Sequence[Record] = ()) -> None:
        self.num_examples = num_examples
        self.num_done = self._num_scored = self._num_errors = self._num_tokens = self._nfe = 0
        self._num_right = 0.0
        self.add(done)
        self._tokens_before = self._num_tokens
        self._started = time.monotonic()

    def add(self, records: Sequence[Record]) -> None:
        """Counts finished examples."""
        for record in records:
            self.num_done += 1
            if record["error"] is not None:
                self._num_errors += 1
                continue
            self._num_tokens += record["length"]
            self._nfe += record["nfe"]
            score = record["scores"][record["primary"]]
            if score is not None:
                self._num_right += score
                self._num_scored += 1

    def words(self) -> str:
        """Returns accuracy, speed and errors so far, in words."""
        parts = []
        if self._num_scored:
            parts.append(f"accuracy {self._num_right / self._num_scored:.3f}")
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
        right = f"acc {self._num_right / self._num_scored:.3f} " if self._num_scored else ""
        return (right + f"{self._num_errors} errors" * bool(self._num_errors)).strip()


class _Shown(Reporter):
    """Keeps the numbers that are shown: of the present setting, and of the whole run."""

    def __init__(self) -> None:
        self._label = ""
        self._sums = Sums(0)
        self._num_settings = self._num_begun = self._num_expected = self._num_left = 0
        self._started = time.monotonic()

    def expect(self, num_settings: int, num_examples: int) -> None:
        self._num_settings = num_settings
        self._num_expected = self._num_left = num_examples
        self._started = time.monotonic()

    def begin(self, label: str, num_examples: int, done: Sequence[Record]) -> None:
        self._label, self._sums = label, Sums(num_examples, done)
        self._num_begun += 1

    def add(self, records: Sequence[Record]) -> None:
        self._sums.add(records)
        self._num_left -= len(records)

    def _place(self) -> str:
        """Returns which setting of how many is decoded, in words; empty for a single one."""
        several = self._num_settings > 1
        return f"setting {self._num_begun} of {self._num_settings}" if several else ""

    def _time_left(self) -> str:
        """Returns the time that the examples left take at the speed so far, in words."""
        num_done = self._num_expected - self._num_left
        if not num_done or self._num_left <= 0:
            return ""
        left_s = (time.monotonic() - self._started) / num_done * self._num_left
        return f"about {timedelta(seconds=round(left_s))} left"


class Lines(_Shown):
    """Writes a line when a setting starts and ends, and every few seconds between."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self._written = 0.0

    def begin(self, label: str, num_examples: int, done: Sequence[Record]) -> None:
        super().begin(label, num_examples, done)
        self._write()

    def add(self, records: Sequence[Record]) -> None:
        super().add(records)
        is_finished = self._sums.num_done == self._sums.num_examples
        if is_finished or time.monotonic() - self._written > _LINE_EVERY_S:
            self._write()

    def _write(self) -> None:
        sums = self._sums
        place = ": ".join(filter(None, (self._place(), self._label)))
        told = ", ".join(filter(None, (sums.words(), self._time_left())))
        line = f"{place}: {sums.num_done}/{sums.num_examples} {told}".rstrip()
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        self._written = time.monotonic()


class Bar(_Shown):
    """Shows label, bar, count, running accuracy and time left, within 80 columns.

    The bar also moves within a batch, as positions are committed. Long labels lose their end. A
    second bar shows the whole of several settings; a setting that is complete becomes a line above.
    """

    def __init__(self, console: Console) -> None:
        super().__init__()
        label = Column(ratio=1, no_wrap=True, overflow="ellipsis", min_width=12)
        self._progress = Progress(
            TextColumn("{task.description}", table_column=label, markup=False),
            BarColumn(bar_width=12),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[words]}", table_column=Column(no_wrap=True)),
            TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
            console=console,
            expand=True,
        )
        self._task: TaskID | None = None
        self._all: TaskID | None = None
        self._looked = 0.0

    def __enter__(self) -> "Reporter":
        self._progress.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._progress.stop()

    def expect(self, num_settings: int, num_examples: int) -> None:
        super().expect(num_settings, num_examples)
        if num_settings > 1:
            self._all = self._progress.add_task("", total=num_examples, words="")

    def begin(self, label: str, num_examples: int, done: Sequence[Record]) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._progress.console.print(
                f"{self._label}: {self._sums.words()}", markup=False, highlight=False
            )
        super().begin(label, num_examples, done)
        if self._all is not None:
            self._progress.update(self._all, description=self._place())
        self._task = self._progress.add_task(
            label, total=num_examples, completed=len(done), words=self._sums.short()
        )

    def add(self, records: Sequence[Record]) -> None:
        super().add(records)
        self._move(self._sums.num_done)
        if self._all is not None:
            self._progress.advance(self._all, len(records))

    def _move(self, completed: float) -> None:
        if self._task is not None:
            self._progress.update(self._task, completed=completed, words=self._sums.short())

    def __call__(self, event: StepEvent) -> None:
        now = time.monotonic()
        if now - self._looked < _LOOK_EVERY_S:
            return
        self._looked = now
        left = event.after.unfinished.sum(-1) / event.after.gen_lengths
        # Rows of this batch that have left the round are finished, but not yet counted.
        self._move(min(self._sums.num_examples, self._sums.num_done + float((1.0 - left).sum())))


def reporter_for(console: Console) -> Reporter:
    """Returns a bar for a terminal and lines for anything else."""
    return Bar(console) if console.is_terminal else Lines(console)
