"""A progress bar of a decode, on standard error."""

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dllm_decode.core.observers import StepEvent


class AnswerProgress:
    """An observer that counts answers that have ended; a context that shows a bar meanwhile.

    Args:
        num_answers: Number of answers in the end.
    """

    def __init__(self, num_answers: int) -> None:
        self._finished: set[int] = set()
        self._bar = Progress(
            TextColumn("answers"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[forwards]} forwards"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task("answers", total=num_answers, forwards=0)

    def __call__(self, event: StepEvent) -> None:
        for request, has_ended in zip(event.requests.tolist(), event.ended.tolist(), strict=True):
            if has_ended:
                self._finished.add(request)
        self._bar.update(self._task, completed=len(self._finished), forwards=event.forwards)

    def __enter__(self) -> "AnswerProgress":
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            total = self._bar.tasks[0].total
            self._bar.update(self._task, completed=total)
        self._bar.stop()
