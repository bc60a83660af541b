"""Requests: a prompt and the options that may differ from row to row, and the queue of requests."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from dllm_decode.core.automaton import Automaton
from dllm_decode.core.options import DecodeConfig
from dllm_decode.core.stopping import NeverStop, StopRule


@dataclass(frozen=True)
class Request:
    """One prompt and the options that may differ from row to row.

    Make requests with `Decoder.request`, which checks them.

    Attributes:
        index: Number of the request, by which observers and outputs name it.
        prompt: Token ids.
        config: The options of this request.
        template: First tokens of the answer, [MASK] at its blanks; the rest of the answer is blank.
        noise_index: A number that also seeds the noise, so that equal prompts in one decode draw
            differently.
        stop: Ends the answer early, in addition to an EOS.
        constraint: The texts of which the answer must be one; `None`: any text.
    """

    index: int
    prompt: Sequence[int]
    config: DecodeConfig
    template: Sequence[int] = ()
    noise_index: int = 0
    stop: StopRule = field(default_factory=NeverStop)
    constraint: Automaton | None = None

    def first_blank(self, mask_id: int) -> int:
        """Returns the first position that the template leaves blank, that is [MASK]."""
        given = takewhile(lambda token: token != mask_id, self.template)
        return sum(1 for _ in given)


class RequestQueue:
    """Requests in the order in which they are answered; `run` takes them as rows become free.

    `put` and `cancel` may be called between two rounds, also while `run` is being iterated.
    """

    def __init__(self, requests: Iterable[Request] = ()) -> None:
        """Begins with requests, perhaps of a generator; each is taken when a row is free."""
        self._later = iter(requests)
        self._waiting: deque[Request] = deque()
        self._cancelled: set[int] = set()

    def put(self, request: Request) -> None:
        """Adds a request after earlier additions, ahead of requests yet to be produced."""
        self._cancelled.discard(request.index)
        self._waiting.append(request)

    def cancel(self, index: int) -> None:
        """Ends the request of this index: its row is free in the next round, without an output."""
        self._cancelled.add(index)

    def take(self, most: int) -> list[Request]:
        """Returns the next requests, at most `most`; an empty list if no request is left."""
        taken: list[Request] = []
        while len(taken) < most:
            request = self._waiting.popleft() if self._waiting else next(self._later, None)
            if request is None:
                # No request is left, so that no cancellation can be meant for one.
                self._cancelled.clear()
                break
            if request.index not in self.take_cancelled([request.index]):
                taken.append(request)
        return taken

    def take_cancelled(self, indices: Sequence[int]) -> list[int]:
        """Returns the indices of cancelled requests, and forgets that they were cancelled."""
        if not self._cancelled:
            return []
        cancelled = [index for index in indices if index in self._cancelled]
        self._cancelled.difference_update(cancelled)
        return cancelled
