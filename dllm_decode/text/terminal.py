"""Shows an answer on a terminal while it is decoded."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from dllm_decode.core.canvas import Canvas
from dllm_decode.core.observers import Observer, StepEvent
from dllm_decode.core.output import before_end
from dllm_decode.core.stopping import Detokenizer

_MASK = "·"
_FRESH = "bold black on yellow"
_UNKNOWN_BYTES = "\ufffd"

# More tokens than this after the answer are shown as a count, as in replays.
_SHORT_TAIL = 6


@contextmanager
def stream_to_terminal(
    tokenizer: Detokenizer, *, row: int = 0, console: Console | None = None
) -> Iterator[Observer]:
    """Shows an answer while it is decoded; the context's value is an observer.

        with stream_to_terminal(tokenizer) as watch:
            decode(model, prompts, sampler, observers=[watch])

    Tokens of the last step are highlighted, masks are dots, and a count replaces the tail.
    In the end only the answer is left; if the output is not a terminal, nothing else is written.
    With `decode_many`, the answer is shown while you iterate.

    Args:
        tokenizer: Turns one id into text.
        row: Index of the prompt whose answer is shown.
        console: Console to write to; `None` is standard output.
    """
    console = Console() if console is None else console
    view = _LiveView(tokenizer, row, console)
    if not console.is_terminal:
        yield view
        console.print(view.final(), soft_wrap=True)
        return
    with Live(console=console, auto_refresh=False) as live:
        view.live = live
        yield view
        live.update(view.final(), refresh=True)


class _LiveView:
    """Draws one answer: its tokens so far, the open masks, and how much follows them."""

    def __init__(self, tokenizer: Detokenizer, row: int, console: Console) -> None:
        self._tokenizer = tokenizer
        self._row = row
        self._console = console
        self._answer: list[int] = []
        self._num_rounds = 0
        self.live: Live | None = None

    def __call__(self, event: StepEvent) -> None:
        index = event.index_of(self._row)
        if index is None:
            return
        self._num_rounds += 1
        after = event.after.take(index)
        tokens = after.answer_tokens()[0].tolist()
        self._answer = before_end(tokens, after.eos_ids)
        if self.live is not None:
            before = event.before.take(index).answer_tokens()[0].tolist()
            fresh = [old != new for old, new in zip(before, tokens, strict=True)]
            row = event.rows[int(index)]
            num_open = row.opening.stop - row.prompt_length
            text = self._drawn(tokens, fresh, after, num_open=num_open)
            counted = Text(f"round {self._num_rounds}, forward {event.forwards}", style="dim")
            self.live.update(Group(self._last_lines(text), counted), refresh=True)

    def _drawn(
        self, tokens: list[int], fresh: list[bool], canvas: Canvas, *, num_open: int
    ) -> Text:
        """Returns the answer with its fresh tokens highlighted, and a count in place of its tail.

        The tail is what follows the first EOS; without one, the masks after the open block.
        """
        separator = _separator_of(self._tokenizer, canvas.eos_ids[0])
        masked = [token == canvas.mask_id for token in tokens]
        num_settled = len(tokens) - masked[::-1].index(False) if False in masked else 0
        has_end = len(self._answer) < len(tokens)
        tail = len(self._answer) if has_end else max(num_settled, num_open)
        tail = tail if len(tokens) - tail > _SHORT_TAIL else len(tokens)
        text, start = Text(), 0
        for is_mask, group in groupby(masked[:tail]):
            stop = start + len(list(group))
            if is_mask:
                text.append((_MASK + separator) * (stop - start), style="dim")
            else:
                for piece, is_fresh in self._pieces(tokens[start:stop], fresh[start:stop]):
                    text.append(piece, style=_FRESH if is_fresh else "")
                text.append(separator)
            start = stop
        if tail < len(tokens):
            named = self._tokenizer.decode([canvas.eos_ids[0]]) if has_end else "open"
            space = "" if separator else " "
            text.append(f"{space}… {named} \u00d7 {len(tokens) - tail}", style="dim")
        return text

    def _pieces(self, tokens: list[int], fresh: list[bool]) -> Iterator[tuple[str, bool]]:
        """Yields the text of tokens in parts that are fresh as a whole, or not at all.

        The tokens are decoded together, because a character may take several tokens of a byte-level
        tokenizer; a character with a missing token is shown as a mask.
        """
        text = self._tokenizer.decode(tokens)
        start = num_tokens = 0
        for is_fresh, group in groupby(fresh):
            num_tokens += len(list(group))
            is_last = num_tokens == len(tokens)
            decoded = self._tokenizer.decode(tokens[:num_tokens]).rstrip(_UNKNOWN_BYTES)
            stop = len(text) if is_last else max(start, len(decoded))
            yield text[start:stop].replace(_UNKNOWN_BYTES, _MASK), is_fresh
            start = stop

    def _last_lines(self, text: Text) -> Text:
        """Returns the end of a text, as much as the terminal shows above the count of rounds."""
        console = self._console
        lines = text.wrap(console, console.width, overflow="fold")
        return Text("\n").join(lines[-max(1, console.height - 2) :])

    def final(self) -> Text:
        """Returns the text of the answer."""
        return Text(self._tokenizer.decode(self._answer))


def _separator_of(tokenizer: Detokenizer, token: int) -> str:
    """Returns the text between two tokens: a space if tokens are words, else nothing."""
    piece = tokenizer.decode([token])
    return " " if tokenizer.decode([token, token]) == f"{piece} {piece}" else ""
