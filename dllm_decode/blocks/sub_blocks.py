"""Small blocks inside a block (Fast-dLLM v2)."""

from dataclasses import dataclass
from typing import Annotated

from dllm_decode.blocks.base import BlockSchedule, block_of
from dllm_decode.core.rows import Opening, Row
from samplers.checks import count_from
from samplers.facts import Fact


@dataclass(frozen=True)
class SubBlocks(BlockSchedule):
    """Opens a block from left to right in sub-blocks, for each row at its own pace.

    The model sees the whole block at every forward; only the masks of one sub-block may be
    committed. On a model whose logits predict the next column, a block's first token is committed
    alone, before the first sub-block opens, because the last column of the previous block predicts
    it, as in a causal model.

    Source: Wu et al. 2025, "Fast-dLLM v2: Efficient Block-Diffusion LLM",
    https://arxiv.org/abs/2509.26328; the authors use `ConfidenceThreshold(0.9)`, block length 32,
    sub-blocks of 8, and `SubBlockCache`.
    Differs: The forward that gives a block's first token also sees the block's masks. This changes
    nothing on their models, in which no column depends on a later block.

    Attributes:
        block_length: Tokens per block; `None`: as `DecodeConfig.block_length`.
        sub_block_length: Tokens per sub-block; the last one of a block may be short.

    Raises:
        ValueError: If a length is not positive.
    """

    block_length: Annotated[int, count_from(1, "tokens")] | None = None
    sub_block_length: Annotated[int, count_from(1, "tokens")] = 8

    @property
    def needs(self) -> frozenset[Fact]:
        return frozenset({Fact.ONE_STEP_A_FORWARD})

    def opening(self, row: Row, block_length: int, shift: int) -> Opening:
        start, stop = block_of(row, block_length)
        if shift and row.first_unsettled == start:
            return Opening.of_block(start, start + 1)
        first = row.first_unsettled - (row.first_unsettled - start) % self.sub_block_length
        block = Opening.of_block(start, stop)
        return block._replace(start=first, stop=min(first + self.sub_block_length, stop))
