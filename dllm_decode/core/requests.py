"""Requests: prompts with options of their own, and the queue they wait in."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from dllm_decode.core.stopping import NeverStop, StopRule


@dataclass(frozen=True)
class Request:
    """One prompt and the options that may differ from row to row.

    Make requests with `Decoder.request`, which checks them.

    Attributes:
        index: Number of the request, by which observers and outputs name it.
        prompt: Token ids.
        template: First tokens of the answer, [MASK] where they are open; the rest is open.
        gen_length: Tokens of the answer.
        seed: Seed of the noise.
        noise_index: Further number that the noise depends on, so that the prompts of one decode
            draw differently; else only on the seed and on the row's own tokens.
        temperature: As in `DecodeConfig`.
        top_p: Share of the probability that proposals are drawn from.
        top_k: Number of tokens that proposals are drawn from; 0: all.
        stop_at_eos: True if the answer ends with its first EOS.
        truncate_at_eos: True if EOS is written over all tokens after an EOS as soon as it is
            committed.
        stop: Ends the answer early, in addition to an EOS.
    """

    index: int
    prompt: Sequence[int]
    gen_length: int
    template: Sequence[int] = ()
    seed: int = 0
    noise_index: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    stop_at_eos: bool = True
    truncate_at_eos: bool = False
    stop: StopRule = field(default_factory=NeverStop)


class RequestQueue:
    """Requests in the order in which they are answered; `run` takes them as rows become free.

    `put` and `cancel` may be called between two rounds, also while `run` is being iterated.
    """

    def __init__(self, requests: Iterable[Request] = ()) -> None:
        """Starts with requests that are produced when their turn comes."""
        self._later = iter(requests)
        self._waiting: deque[Request] = deque()
        self._cancelled: set[int] = set()

    def put(self, request: Request) -> None:
        """Adds a request: after those added before, ahead of those still to be produced."""
        self._cancelled.discard(request.index)
        self._waiting.append(request)

    def cancel(self, index: int) -> None:
        """Ends the request of this index: its row is free in the next round, without an output."""
        self._cancelled.add(index)

    def take(self, most: int) -> list[Request]:
        """Returns the next requests, at most so many; an empty list if none is left or wanted."""
        taken: list[Request] = []
        while len(taken) < most:
            request = self._next()
            if request is None:
                # No request is left that a mark could be meant for.
                self._cancelled.clear()
                break
            if request.index not in self.take_cancelled([request.index]):
                taken.append(request)
        return taken

    def take_cancelled(self, indices: Sequence[int]) -> list[int]:
        """Returns those of some requests that were cancelled, and forgets that they were."""
        if not self._cancelled:
            return []
        found = [index for index in indices if index in self._cancelled]
        self._cancelled.difference_update(found)
        return found

    def _next(self) -> Request | None:
        if self._waiting:
            return self._waiting.popleft()
        return next(islice(self._later, 1), None)
