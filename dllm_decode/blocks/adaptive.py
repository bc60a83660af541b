"""Blocks that end where the text ends a line (AdaBlock-dLLM)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dllm_decode.blocks.base import BlockSchedule, Opened, Opening, Phase
from dllm_decode.canvas import Block, Canvas
from dllm_decode.models.base import MaskPredictor
from samplers.checks import (
    require_count,
    require_probability,
    require_share,
    require_tuple,
    shown,
)
from samplers.view import View


@dataclass(frozen=True)
class AdaptiveBlocks(BlockSchedule):
    """Ends each block at a delimiter that the model predicts, for each row at its own pace.

    When a row has finished a block, its next forward looks at the next `window` of the answer.
    Among the positions there whose most likely token is a delimiter, the most probable one ends the
    new block, if its probability reaches `threshold`; otherwise the block has `block_length`
    tokens, and the last block what is left. The same forward commits. Without delimiters this is
    `Sequential`.

    Source: Lu et al. 2025, "AdaBlock-dLLM: Semantic-Aware Diffusion LLM Inference via Adaptive
    Block Size", https://arxiv.org/abs/2509.26432, block length by the confidence of delimiters.
    Theirs goes with `ConfidenceThreshold(0.9)`, the newline of the tokenizer as the delimiter, and
    a threshold of 0.3 (LLaDA) or 0.5 (Dream).
    Differs: Rows of a batch keep their own pace, theirs is a batch of one. A given token that is a
    delimiter ends a block for certain. A block starts at the first mask behind the last one.

    Attributes:
        delimiters: Token ids at which a block may end.
        threshold: Least probability, in [0, 1], of a delimiter that ends a block.
        block_length: Tokens of a block that no delimiter ends; `None`: as
            `DecodeConfig.block_length`.
        window: Share of the answer, in [0, 1], in which a delimiter is looked for; at least one
            token. It may be longer than a block.

    Raises:
        ValueError: If an attribute is outside its range.
    """

    delimiters: tuple[int, ...]
    threshold: float = 0.3
    block_length: int | None = None
    window: float = 0.25

    def __post_init__(self) -> None:
        require_tuple("delimiters", self.delimiters)
        for token in self.delimiters:
            if isinstance(token, str):
                raise ValueError(
                    f"delimiters must be token ids, got the text {shown(token)}. Pass for example "
                    "(tokenizer.convert_tokens_to_ids('.'),)."
                )
            require_count("delimiters", token, 0)
        require_probability("threshold", self.threshold)
        if self.block_length is not None:
            require_count("block_length", self.block_length, 1, unit="tokens")
        require_share("window", self.window)

    @property
    def opens_parts(self) -> bool:
        return True

    @property
    def ends_anywhere(self) -> bool:
        return True

    def check(self, model: MaskPredictor) -> None:
        beyond = [token for token in self.delimiters if token >= model.vocab_size]
        if beyond:
            raise ValueError(
                f"delimiters must be token ids of {model.name}, in [0, {model.vocab_size}), got "
                f"{beyond[0]}."
            )

    def phases(self, canvas: Canvas, block_length: int, *, shift: int) -> Iterator[Block]:
        return canvas.blocks(canvas.region_length)

    def measured(self, canvas: Canvas, block_length: int) -> tuple[Int[Tensor, " B"], ...]:
        first, num_open = canvas.masked.long().argmax(-1), canvas.open_masks.sum(-1)
        if canvas.opened is None or canvas.due is None:
            return first, num_open
        return first, num_open, (canvas.opened * (_positions(canvas) + 1)).amax(-1)

    def opening(self, measured: Sequence[int], last: Opening | None, phase: Phase) -> Opening:
        first, num_open, *ends = measured
        if last is not None and num_open:
            block = Block(last.opened.start, ends[0] if ends else last.opened.end)
            return Opening(block, block)
        usual = Block(first, min(first + phase.block_length, phase.region_length))
        # All that the new block may hold, until the logits say where it ends.
        widest = min(first + self._num_seen(phase.region_length), phase.region_length)
        block = Block(first, max(usual.end, widest))
        return Opening(block, block, (usual,))

    def restarts(self, before: Block, after: Block) -> bool:
        # The end alone changes once the logits have said where the block ends.
        return before.start != after.start

    def chosen(self, canvas: Canvas, view: View) -> Opened:
        if canvas.opened is None or canvas.due is None:
            return Opened(canvas, view)
        is_new, positions = canvas.due.any(-1, keepdim=True), _positions(canvas)
        starts = canvas.opened.long().argmax(-1, keepdim=True)
        seen = canvas.opened & (positions < starts + self._num_seen(canvas.region_length))
        score = view.probability(view.most_likely)
        score = score.masked_fill(~(seen & self._is_delimiter(view.most_likely)), -1.0)
        best, last = score.max(-1, keepdim=True)
        ended = canvas.opened & (positions <= last)
        block = torch.where(best >= self.threshold, ended, canvas.due)
        opened = torch.where(is_new, block, canvas.opened)
        view = replace(view, masked=view.masked & opened, eligible=view.eligible & opened)
        return Opened(canvas.with_opened(opened, canvas.due), view)

    def _num_seen(self, length: int) -> int:
        """Positions among which a block's delimiter is looked for."""
        return max(1, math.floor(self.window * length))

    def _is_delimiter(self, tokens: Int[Tensor, "B W"]) -> Bool[Tensor, "B W"]:
        # One comparison a token: a tensor of them would have to be sent to the device every step.
        found = torch.zeros_like(tokens, dtype=torch.bool)
        return reduce(or_, (tokens == token for token in self.delimiters), found)


def _positions(canvas: Canvas) -> Int[Tensor, " R"]:
    return torch.arange(canvas.region_length, device=canvas.tokens.device)
