"""Progress of a run: a bar on a terminal, plain lines elsewhere."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType

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
from eval.runs.records import Record

# Looking at the canvas waits for the device: often enough to see, too seldom to slow it down.
_LOOK_EVERY_S = 0.25
_LINE_EVERY_S = 5.0


class Reporter(ABC):
    """Follows a run; also a decode observer."""

    def __enter__(self) -> "Reporter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    @abstractmethod
    def end(self) -> None:
        """Ends the display."""

    @abstractmethod
    def begin(self, label: str, num_examples: int, done: Sequence[Record]) -> None:
        """Starts the display of one setting.

        Args:
            label: What is run.
            num_examples: Examples of this process.
            done: Their records from earlier runs.
        """

    @abstractmethod
    def add(self, records: Sequence[Record]) -> None:
        """Counts finished examples."""

    @abstractmethod
    def __call__(self, event: StepEvent) -> None:
        """Counts tokens within a batch."""


class Silent(Reporter):
    """Shows nothing."""

    def end(self) -> None:
        pass

    def begin(self, label: str, num_examples: int, done: Sequence[Record]) -> None:
        pass

    def add(self, records: Sequence[Record]) -> None:
        pass

    def __call__(self, event: StepEvent) -> None:
        pass


SILENT = Silent()


class Tally:
    """Running sums of one setting.

    Attributes:
        num_examples: Examples in all.
        num_done: Finished ones.
        num_right: Sum of the primary scores.
        num_scored: Examples with a primary score.
        num_errors: Examples that raised.
        num_tokens: Answer tokens.
        nfe: Forwards, summed over examples.
    """

    def __init__(self, num_examples: int, done: Sequence[Record] = ()) -> None:
        """Starts with the records of earlier runs; only speed in seconds is this run's own."""
        self.num_examples = num_examples
        self.num_done = 0
        self.num_right = 0.0
        self.num_scored = 0
        self.num_errors = 0
        self.num_tokens = 0
        self.nfe = 0
        self.add(done)
        self._tokens_before = self.num_tokens
        self.started = time.monotonic()

    def add(self, records: Sequence[Record]) -> None:
        """Counts finished examples."""
        for record in records:
            self.num_done += 1
            if record["error"] is not None:
                self.num_errors += 1
                continue
            self.num_tokens += record["length"]
            self.nfe += record["nfe"]
            score = record["scores"][record["primary"]]
            if score is not None:
                self.num_right += score
                self.num_scored += 1

    def words(self) -> str:
        """Returns accuracy, speed and errors so far, in words."""
        parts = []
        if self.num_scored:
            parts.append(f"accuracy {self.num_right / self.num_scored:.3f}")
        if self.nfe:
            parts.append(f"{self.num_tokens / self.nfe:.2f} tokens/forward")
        num_tokens = self.num_tokens - self._tokens_before
        if num_tokens:
            elapsed_s = max(1e-9, time.monotonic() - self.started)
            parts.append(f"{num_tokens / elapsed_s:.0f} tokens/s")
        if self.num_errors:
            parts.append(f"{self.num_errors} errors")
        return ", ".join(parts)

    def short(self) -> str:
        """Returns accuracy and errors in at most 20 characters: bars have little room."""
        parts = []
        if self.num_scored:
            parts.append(f"acc {self.num_right / self.num_scored:.3f}")
        if self.num_errors:
            parts.append(f"{self.num_errors} errors")
        return " ".join(parts)


class Lines(Reporter):
    """Writes a line when a setting starts and ends, and every few seconds between.

    Attributes:
        console: Where to.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._label = ""
        self._tally = Tally(0)
        self._written = 0.0

    def end(self) -> None:
        pass

    def begin(self, label: str, num_examples: int, done: Sequence[Record]) -> None:
        self._label, self._tally = label, Tally(num_examples, done)
        self._write()

    def add(self, records: Sequence[Record]) -> None:
        self._tally.add(records)
        finished = self._tally.num_done == self._tally.num_examples
        if finished or time.monotonic() - self._written > _LINE_EVERY_S:
            self._write()

    def __call__(self, event: StepEvent) -> None:
        pass

    def _write(self) -> None:
        tally = self._tally
        words = f" {tally.words()}" if tally.words() else ""
        line = f"{self._label}: {tally.num_done}/{tally.num_examples}{words}"
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)
        self._written = time.monotonic()


class Bar(Reporter):
    """Shows label, bar, count, running accuracy and time left, within 80 columns.

    The bar also moves within a batch, as positions are committed. Long labels lose their end.

    Attributes:
        console: Where to.
    """

    def __init__(self, console: Console) -> None:
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
        self._task = TaskID(0)
        self._tally = Tally(0)
        self._looked = 0.0

    def __enter__(self) -> "Reporter":
        self._progress.start()
        return self

    def end(self) -> None:
        self._progress.stop()

    def begin(self, label: str, num_examples: int, done: Sequence[Record]) -> None:
        self._tally = Tally(num_examples, done)
        self._task = self._progress.add_task(
            label, total=num_examples, completed=len(done), words=self._tally.short()
        )

    def add(self, records: Sequence[Record]) -> None:
        self._tally.add(records)
        self._progress.update(self._task, completed=self._tally.num_done, words=self._tally.short())

    def __call__(self, event: StepEvent) -> None:
        now = time.monotonic()
        if now - self._looked < _LOOK_EVERY_S:
            return
        self._looked = now
        left = event.after.unfinished.sum(-1) / event.after.gen_lengths
        share = float((1.0 - left).sum())
        # Rows of this batch that have left the round are finished, but not yet counted.
        completed = min(self._tally.num_examples, self._tally.num_done + share)
        self._progress.update(self._task, completed=completed)


def reporter_for(console: Console) -> Reporter:
    """Returns a bar for a terminal and lines for anything else."""
    return Bar(console) if console.is_terminal else Lines(console)
