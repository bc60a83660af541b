"""Answers while they are decoded: on a terminal, or through a streamer of transformers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from dllm_decode.core.observers import Observer, StepEvent, final_tokens
from dllm_decode.core.stopping import Detokenizer

_MASK = "·"


@runtime_checkable
class PrefixStreamer(Protocol):
    """The interface of transformers' `TextStreamer`: tokens in their order, once each."""

    def put(self, value: torch.Tensor) -> None: ...

    def end(self) -> None: ...


@runtime_checkable
class DraftStreamer(Protocol):
    """The interface of transformers' `TextDiffusionStreamer`: drafts to overwrite, then text."""

    def put_draft(self, value: torch.Tensor) -> None: ...

    def put(self, value: torch.Tensor) -> None: ...

    def end(self) -> None: ...


@contextmanager
def stream_to_terminal(
    tokenizer: Detokenizer, *, row: int = 0, console: Console | None = None
) -> Iterator[Observer]:
    """Shows an answer while it is decoded; the context's value is an observer.

        with stream_to_terminal(tokenizer) as watch:
            decode(model, prompts, sampler, observers=[watch])

    Tokens of the last step are highlighted, masks are dots. If the output is not a terminal, only
    the final answer is written. With `decode_many`, the answer is shown while you iterate.

    Args:
        tokenizer: Turns one id into text.
        row: Index of the prompt whose answer is shown.
        console: Console to write to; `None` is standard output.
    """
    console = Console() if console is None else console
    view = _LiveView(tokenizer, row)
    if not console.is_terminal:
        yield view
        console.print(view.final(), soft_wrap=True)
        return
    with Live(console=console, auto_refresh=False) as live:
        view.live = live
        yield view
        live.update(view.final(), refresh=True)


class _LiveView:
    def __init__(self, tokenizer: Detokenizer, row: int) -> None:
        self._tokenizer = tokenizer
        self._row = row
        self._text = Text()
        self._separator = ""
        self._num_rounds = 0
        self.live: Live | None = None

    def __call__(self, event: StepEvent) -> None:
        index = (event.requests == self._row).nonzero().flatten()
        if not len(index):
            return
        self._num_rounds += 1
        after = event.after.take(index).answers()[0]
        fresh = (after != event.before.take(index).answers()[0]).tolist()
        self._text = Text(overflow="fold")
        self._separator = _separator_of(self._tokenizer, event.after.eos_ids[0])
        for position, token in enumerate(after.tolist()):
            masked = token == event.after.mask_id
            piece = _MASK if masked else self._tokenizer.decode([token])
            style = "dim" if masked else "bold black on yellow" if fresh[position] else ""
            self._text.append(piece, style=style).append(self._separator)
        if self.live is not None:
            counted = Text(f"round {self._num_rounds}, forward {event.forwards}", style="dim")
            self.live.update(Group(self._text, counted), refresh=True)

    def final(self) -> Text:
        """Returns the last state without highlights."""
        return Text(self._text.plain.rstrip())


def draft_observer(streamer: DraftStreamer, *, row: int = 0) -> Observer:
    """Returns an observer that feeds a transformers `TextDiffusionStreamer`.

    The streamer gets the whole answer as a draft after each round, and the final answer once no
    unsettled position is left.

    Args:
        streamer: Such as `TextDiffusionStreamer(tokenizer)`; it shows one row.
        row: Index of the prompt whose answer is shown.
    """

    def observe(event: StepEvent) -> None:
        index = (event.requests == row).nonzero().flatten()
        if not len(index):
            return
        after = event.after.take(index)
        answer = after.answers().cpu()
        if after.unfinished.any():
            streamer.put_draft(answer[0])
        else:
            ends = torch.isin(answer[0], torch.tensor(after.eos_ids)).nonzero().flatten()
            streamer.put(answer[0, : int(ends[0])] if len(ends) else answer[0])
            streamer.end()

    return observe


class PrefixStream:
    """An observer that feeds a transformers `TextStreamer` with the final beginning of an answer.

    Tokens appear in their order, each once, as soon as all tokens before them are settled; if the
    sampler may change settled tokens, when their block is finished.

    Args:
        streamer: Such as `TextStreamer(tokenizer)`; it shows one row.
        row: Index of the prompt whose answer is shown.
        waits_for_block: Without effect, because `StepEvent.is_final` says the same.
    """

    def __init__(
        self, streamer: PrefixStreamer, *, row: int = 0, waits_for_block: bool = False
    ) -> None:
        self._streamer = streamer
        self._row = row
        self._num_put = 0

    def __call__(self, event: StepEvent) -> None:
        index = (event.requests == self._row).nonzero().flatten()
        if len(index):
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


def _separator_of(tokenizer: Detokenizer, token: int) -> str:
    """Returns the text between two tokens: a space if tokens are words, else nothing."""
    piece = tokenizer.decode([token])
    return " " if tokenizer.decode([token, token]) == f"{piece} {piece}" else ""
