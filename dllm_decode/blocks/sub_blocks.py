"""Small blocks inside a block (Fast-dLLM v2)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

from dllm_decode.blocks.base import BlockSchedule, Opening, Phase
from dllm_decode.canvas import Block, Canvas
from samplers.checks import require_count


@dataclass(frozen=True)
class SubBlocks(BlockSchedule):
    """Opens a block from left to right in sub-blocks, for each row at its own pace.

    The model sees the whole block at every forward; only the masks of one sub-block may be
    committed. On a model whose logits predict the next column, a block's first token is committed
    alone, before the first sub-block opens: the last column of the finished block before predicts
    it, as in a causal model.

    Source: Wu et al. 2025, "Fast-dLLM v2: Efficient Block-Diffusion LLM",
    https://arxiv.org/abs/2509.26328; theirs goes with `ConfidenceThreshold(0.9)`, block length 32,
    sub-blocks of 8, and `SubBlockCache`.
    Differs: The forward that gives a block's first token sees this block's first [MASK] too, which
    changes nothing on their models: nothing before a block depends on it.

    Attributes:
        block_length: Tokens per block; `None`: as `DecodeConfig.block_length`.
        sub_block_length: Tokens per sub-block; the last one of a block may be short.

    Raises:
        ValueError: If a length is not positive.
    """

    block_length: int | None = None
    sub_block_length: int = 8

    def __post_init__(self) -> None:
        if self.block_length is not None:
            require_count("block_length", self.block_length, 1, unit="tokens")
        require_count("sub_block_length", self.sub_block_length, 1, unit="tokens")

    @property
    def opens_parts(self) -> bool:
        return True

    def phases(self, canvas: Canvas, block_length: int, *, shift: int) -> Iterator[Block]:
        for block in canvas.blocks(block_length):
            if shift:
                yield Block(block.start, block.start + 1)
            yield block

    def measured(self, canvas: Canvas, block_length: int) -> tuple[Int[Tensor, " B"], ...]:
        return (canvas.masked.long().argmax(-1),)

    def opening(self, measured: Sequence[int], last: Opening | None, phase: Phase) -> Opening:
        (first,) = measured
        block = first - first % phase.block_length
        start = first - (first - block) % self.sub_block_length
        return Opening(Block(start, min(start + self.sub_block_length, block + phase.block_length)))
