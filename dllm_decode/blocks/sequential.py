"""One block after another."""

from dataclasses import dataclass

from dllm_decode.blocks.base import BlockSchedule
from samplers.checks import require_count


@dataclass(frozen=True)
class Sequential(BlockSchedule):
    """Decodes one block after another, left to right: semi-autoregressive decoding.

    All rows of a batch are in the same block; the next one opens when the last row has finished.

    Source: Arriola et al. 2025, "Block Diffusion", https://arxiv.org/abs/2503.09573; Nie et al.
    2025, "Large Language Diffusion Models", https://arxiv.org/abs/2502.09992, for models that
    attend in both directions.

    Attributes:
        block_length: Tokens per block; `None`: as `DecodeConfig.block_length`.
    """

    block_length: int | None = None

    def __post_init__(self) -> None:
        if self.block_length is not None:
            require_count("block_length", self.block_length, 1, unit="tokens")
