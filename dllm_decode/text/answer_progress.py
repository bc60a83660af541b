"""The progress of a decode, on standard error."""

from rich.console import Console

from dllm_decode.core.observers import StepEvent
from dllm_decode.text.progress_bar import ProgressBar


class AnswerProgress:
    """An observer that counts the answers that have ended; as a context, shows a progress bar.

    Args:
        num_answers: Number of answers in total.
    """

    def __init__(self, num_answers: int) -> None:
        self._finished: set[int] = set()
        self._bar = ProgressBar(Console(stderr=True), "answers", num_answers)

    def __call__(self, event: StepEvent) -> None:
        self._finished.update(event.request_indices[event.ended].tolist())
        self._bar.update(
            len(self._finished), f"{len(self._finished)} done, {event.forwards} forwards"
        )

    def __enter__(self) -> "AnswerProgress":
        self._bar.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self._bar.__exit__(*raised)
