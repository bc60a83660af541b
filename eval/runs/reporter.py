"""Progress of a run: a bar on a terminal, plain lines elsewhere."""

import time
from collections.abc import Sequence

from rich.console import Console

from dllm_decode import StepEvent
from dllm_decode.text.progress_bar import ProgressBar
from eval.metrics.statistics import mean
from eval.runs.records import Record, score_of

# Reading the canvas waits for the device: seldom enough not to slow it down.
_LOOK_EVERY_S = 0.25


class Sums:
    """Running sums of one setting, earlier runs included."""

    def __init__(self, num_examples: int, done: Sequence[Record] = ()) -> None:
        self.num_examples = num_examples
        self.num_done = self._num_errors = self._num_tokens = self._nfe = 0
        self._scores: list[float] = []
        self.add(done)

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
        """Returns accuracy, tokens per forward and errors so far, in words."""
        parts = [f"accuracy {mean(self._scores):.3f}"] if self._scores else []
        if self._nfe:
            parts.append(f"{self._num_tokens / self._nfe:.2f} tokens/forward")
        if self._num_errors:
            parts.append(f"{self._num_errors} errors")
        return ", ".join(parts)

    def short(self) -> str:
        """Returns accuracy and errors in few characters."""
        parts = [f"acc {mean(self._scores):.3f}"] if self._scores else []
        return ", ".join(parts + [f"{self._num_errors} errors"] * bool(self._num_errors))


class Reporter:
    """Follows a run, also as an observer of its decodes; shows nothing on a quiet console.

    One bar shows all examples that this process decodes, with the number of the setting and its
    accuracy. The bar also moves within a batch, as positions are committed. A setting that begins
    or ends is a line.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = ProgressBar(console, "run")
        self._label, self._sums = "", Sums(0)
        self._num_settings = self._num_begun = self._num_decoded = 0
        self._looked = 0.0

    def __enter__(self) -> "Reporter":
        return self

    def __exit__(self, *raised: object) -> None:
        self._bar.__exit__()

    def expect(self, num_settings: int, num_examples: int) -> None:
        """Announces how many settings there are, and how many examples this process will decode."""
        self._num_settings = num_settings
        self._begin_bar(num_examples)

    def begin(self, label: str, num_examples: int, done: Sequence[Record]) -> None:
        """Starts the display of one setting.

        `num_examples` counts the examples of this process; `done` has their earlier records.
        """
        self._label, self._sums = label, Sums(num_examples, done)
        self._num_begun += 1
        if not self._num_settings:
            # A calibration ends at the first setting that it cannot certify.
            self._begin_bar(num_examples - len(done))
        if not self._console.is_terminal or len(done) == num_examples:
            self._say()

    def add(self, records: Sequence[Record]) -> None:
        """Counts finished examples."""
        self._sums.add(records)
        self._num_decoded += len(records)
        self._bar.update(self._num_decoded, self._words())
        if self._sums.num_done == self._sums.num_examples:
            self._say()

    def __call__(self, event: StepEvent) -> None:
        """Counts tokens within a batch."""
        now = time.monotonic()
        if not self._console.is_terminal or now - self._looked < _LOOK_EVERY_S:
            return
        self._looked = now
        shares_left = event.after.unfinished.sum(-1) / event.after.gen_lengths
        # Rows of this batch that have left the round are finished, but not yet counted.
        self._bar.update(self._num_decoded + float((1.0 - shares_left).sum()), self._words())

    def _begin_bar(self, num_examples: int) -> None:
        self._bar.__exit__()
        self._num_decoded = 0
        self._bar = ProgressBar(self._console, "run", num_examples).__enter__()

    def _words(self) -> str:
        """Returns place and accuracy in about 20 characters, because bars have little room."""
        return ", ".join(filter(None, (self._place(), self._sums.short())))

    def _say(self) -> None:
        sums, place = self._sums, f"setting {self._place()}: " * bool(self._place())
        self._bar.say(
            f"{place}{self._label}: {sums.num_done}/{sums.num_examples} {sums.words()}".rstrip()
        )

    def _place(self) -> str:
        """Returns "n of N", the number of the current setting; empty if there is only one."""
        return f"{self._num_begun} of {self._num_settings}" * (self._num_settings > 1)


SILENT = Reporter(Console(quiet=True, force_terminal=False))
