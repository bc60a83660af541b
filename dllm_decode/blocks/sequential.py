"""One block after another."""

from dataclasses import dataclass
from typing import Annotated

from dllm_decode.blocks.base import BlockSchedule, block_of
from dllm_decode.core.rows import Opening, Row
from samplers.checks import count_from
from samplers.facts import Fact


@dataclass(frozen=True)
class Sequential(BlockSchedule):
    """Decodes one block after another, left to right: semi-autoregressive decoding.

    Each row is in a block of its own; its next block opens as soon as this one is settled.

    Source: Arriola et al. 2025, "Block Diffusion", https://arxiv.org/abs/2503.09573; Nie et al.
    2025, "Large Language Diffusion Models", https://arxiv.org/abs/2502.09992, for models that
    attend in both directions.

    Attributes:
        block_length: Tokens per block; `None`: as `DecodeConfig.block_length`.
    """

    block_length: Annotated[int, count_from(1, "tokens")] | None = None

    @property
    def gives(self) -> frozenset[Fact]:
        return frozenset({Fact.WHOLE_BLOCKS})

    def opening(self, row: Row, block_length: int, shift: int) -> Opening:
        if row.first_unsettled < row.opening.stop:
            return row.opening
        return Opening.of_block(*block_of(row, block_length))
