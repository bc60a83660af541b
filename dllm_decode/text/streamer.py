"""Feeds a streamer of transformers with an answer while it is decoded."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch

from dllm_decode.core.observers import StepEvent
from dllm_decode.core.output import final_tokens
from dllm_decode.core.requests import Request
from samplers.checks import shown


@runtime_checkable
class PrefixStreamer(Protocol):
    """The interface of transformers' `TextStreamer`: tokens in their order, once each."""

    def put(self, value: torch.Tensor) -> None: ...

    def end(self) -> None: ...


class PrefixStream:
    """An observer that feeds a transformers `TextStreamer` with the final beginning of an answer.

    Tokens appear in their order, each once, as soon as all tokens before them are settled; if the
    sampler may change settled tokens, tokens appear when their block is finished.

    Args:
        streamer: Such as `TextStreamer(tokenizer)`; it shows one row.
        row: Index of the prompt whose answer is shown.
    """

    def __init__(self, streamer: PrefixStreamer, *, row: int = 0) -> None:
        self._streamer = streamer
        self._row = row
        self._num_put = 0

    def __call__(self, event: StepEvent) -> None:
        index = event.index_of(self._row)
        if index is not None:
            rows, after = [event.rows[int(index)]], event.after.take(index)
            self._put(final_tokens(rows, after, is_final=event.is_final)[0])

    def close(self, answer: list[int]) -> None:
        """Puts the rest of an answer, and ends the stream."""
        self._put(answer)
        self._streamer.end()

    def _put(self, tokens: list[int]) -> None:
        for token in tokens[self._num_put :]:
            # One by one, as the streamers of transformers are fed.
            self._streamer.put(torch.tensor([token]))
        self._num_put = max(self._num_put, len(tokens))


def answer_stream(streamer: PrefixStreamer, requests: Sequence[Request]) -> PrefixStream:
    """Returns an observer that feeds a streamer, which is given the prompt.

    Raises:
        ValueError: If it is no streamer, or there is more than one request.
    """
    if isinstance(streamer, type) or not isinstance(streamer, PrefixStreamer):
        raise ValueError(
            f"streamer must be a streamer such as TextStreamer(tokenizer), got {shown(streamer)}."
        )
    if len(requests) != 1:
        raise ValueError(f"streamer must be given with a single input, got {len(requests)}.")
    # As transformers does; its streamers have an option to skip the prompt.
    streamer.put(torch.as_tensor(requests[0].prompt))
    return PrefixStream(streamer)
