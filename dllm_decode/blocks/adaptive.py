"""Blocks that end where the text ends a line (AdaBlock-dLLM)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from dllm_decode.blocks.base import BlockSchedule
from dllm_decode.core.canvas import Canvas
from dllm_decode.core.model import MaskPredictor
from dllm_decode.core.rows import CLOSED, Opening, Row
from dllm_decode.core.sending import send
from samplers.checks import Probability, Share, count_from, require_count, require_tuple, shown
from samplers.view import View, is_one_of


@dataclass(frozen=True)
class AdaptiveBlocks(BlockSchedule):
    """Ends each block at a delimiter that the model predicts, for each row at its own pace.

    When a row has finished a block, its next forward looks at the next `window` of the answer.
    Among the positions there whose most likely token is a delimiter, the most probable one ends the
    new block, if its probability reaches `threshold`; otherwise the block has `block_length`
    tokens, or as many as the answer has left. The same forward commits. Without delimiters this is
    `Sequential`.

    Source: Lu et al. 2025, "AdaBlock-dLLM: Semantic-Aware Diffusion LLM Inference via Adaptive
    Block Size", https://arxiv.org/abs/2509.26432, block length by the confidence of delimiters.
    The authors use `ConfidenceThreshold(0.9)`, the newline of the tokenizer as the only delimiter,
    and a threshold of 0.3 (LLaDA) or 0.5 (Dream).
    Differs: Rows of a batch keep their own pace; the authors decode one row. A given token that is
    a delimiter ends a block for certain. A block starts at the row's first unsettled position.

    Attributes:
        delimiters: Token ids at which a block may end, or texts. `generate`, `stream` and the
            commands replace a text by its token, and leave out texts that are not one token of
            the tokenizer.
        threshold: Least probability, in [0, 1], of a delimiter that ends a block.
        block_length: Tokens of a block that no delimiter ends; `None`: as
            `DecodeConfig.block_length`.
        window: Share of the answer, in [0, 1], in which a delimiter is looked for; at least one
            token. The window may be longer than a block.

    Raises:
        ValueError: If an attribute is outside its range.
    """

    delimiters: tuple[int | str, ...] = (".", "\n")
    threshold: Probability = 0.3
    block_length: Annotated[int, count_from(1, "tokens")] | None = None
    window: Share = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        require_tuple("delimiters", self.delimiters)
        for token in self._tokens:
            require_count("delimiters", token, 0)

    @property
    def _tokens(self) -> tuple[int, ...]:
        """The delimiters that are no texts."""
        return tuple(token for token in self.delimiters if not isinstance(token, str))

    def with_tokenizer(self, tokenizer: Any, marker: str = "") -> "AdaptiveBlocks":
        found = [token for part in self.delimiters for token in _tokens_of(part, tokenizer)]
        if self.delimiters and not found:
            raise ValueError(
                f"delimiters must have a text that is one token of the tokenizer, got "
                f"{self.delimiters}. Pass other texts, or token ids."
            )
        return replace(self, delimiters=tuple(dict.fromkeys(found)))

    def check(self, model: MaskPredictor) -> None:
        for text in self.delimiters:
            if isinstance(text, str):
                raise ValueError(
                    f"delimiters must be token ids where there is no tokenizer, got the text "
                    f"{shown(text)}. Use generate, or with_tokenizer(tokenizer) of the schedule."
                )
        beyond = [token for token in self._tokens if token >= model.vocab_size]
        if beyond:
            raise ValueError(
                f"delimiters must be token ids of {model.name}, in [0, {model.vocab_size}), got "
                f"{beyond[0]}."
            )

    def window_length(self, block_length: int, answer_length: int) -> int:
        return answer_length

    def numbers(
        self, canvas: Canvas, block_length: int, state: Int[Tensor, " B"] | None
    ) -> Int[Tensor, "B 1"] | None:
        """Returns the first column after each row's block, which the logits have decided."""
        return None if state is None else state[:, None]

    def opening(self, row: Row, block_length: int, shift: int) -> Opening:
        previous = row.opening
        if previous != CLOSED:
            (stop,) = row.numbers.blocks
            if row.first_unsettled < stop:
                return previous._replace(stop=stop, block=(previous.start, stop), note=None)
        start, end = row.first_unsettled, row.end
        num_seen = max(1, math.floor(self.window * (end - row.blocks_start)))
        usual = min(start + block_length, end)
        # The new block may be this long until the logits decide where it ends.
        widest = max(usual, min(start + num_seen, end))
        note = _New(usual, num_seen)
        block, phase = (start, widest), (row.blocks_start, end)
        return Opening(start, widest, block, phase=phase, cache_period=(start,), note=note)

    def narrowed(
        self, view: View, openings: Sequence[Opening], state: Int[Tensor, " B"] | None
    ) -> tuple[View, Int[Tensor, " B"]]:
        device, width = view.tokens.device, view.tokens.shape[1]
        notes = [opening.note for opening in openings]
        if state is not None and not any(notes):
            return view, state
        bounds = [
            (
                opening.phase[0],
                opening.start,
                opening.stop if note is None else note.usual,
                opening.start if note is None else min(opening.stop, opening.start + note.seen),
            )
            for opening, note in zip(openings, notes, strict=True)
        ]
        first, start, usual, seen = send(bounds, device)[..., None].unbind(1)
        columns = first + torch.arange(width, device=device)
        is_seen = (columns >= start) & (columns < seen)
        score = view.probability(view.most_likely)
        score = score.masked_fill(~(is_seen & is_one_of(view.most_likely, self._tokens)), -1.0)
        best, place = score.max(-1, keepdim=True)
        stops = torch.where(best >= self.threshold, first + place + 1, usual)
        # If a cache computes only some open columns, the first of these stays open.
        is_before = view.eligible.cumsum(-1) == 0
        fewest = first + is_before.sum(-1, keepdim=True) + 1
        stops = torch.where(view.eligible.any(-1, keepdim=True), stops.maximum(fewest), stops)
        inside = columns < stops
        view = replace(view, masked=view.masked & inside, eligible=view.eligible & inside)
        return view, stops.squeeze(-1)


def _tokens_of(delimiter: int | str, tokenizer: Any) -> list[int]:
    """Returns the token of a text as it follows a word, or a token itself; else no token."""
    if not isinstance(delimiter, str):
        return [delimiter]
    token = tokenizer(f"a{delimiter}", add_special_tokens=False)["input_ids"][-1]
    return [token] if tokenizer.decode([token]).strip(" ") == delimiter else []


class _New(NamedTuple):
    """A block that has just been opened.

    Attributes:
        usual: First column after the block, if no delimiter ends the block.
        seen: Positions among which a delimiter is looked for.
    """

    usual: int
    seen: int
