"""Caching without any refresh (FreeCache)."""

from dataclasses import dataclass
from typing import Literal

from dllm_decode.caches.base import RECOMPUTED, CachePolicy, CacheQuery
from dllm_decode.core.columns import Columns, columns
from samplers.facts import Fact


@dataclass(frozen=True)
class FreeCache(CachePolicy):
    """Freezes the prompt after the first forward and every block once it is finished, for good.

    On a block-causal model `freeze="clean"` is exact block caching: a block's keys and values last
    from the first forward that sees all its tokens, which is the first one of the next block, so
    no forward is spent on storing them.

    Source: Hu et al. 2025, "Accelerating Diffusion Language Model Inference via Efficient KV
    Caching and Guided Diffusion", https://arxiv.org/abs/2505.21467, FreeCache.
    Differs: "clean" computes a finished block once more in the first forward of the next. The
    authors' code ("official") keeps the keys and values of the block's last forward, in which the
    tokens that it then committed were still [MASK]; with one step a block it also misplaces the
    first block, which is not reproduced.

    Attributes:
        freeze: Which keys and values of a finished block are kept: those of its tokens ("clean"),
            or those of its last forward ("official").
    """

    freeze: Literal["clean", "official"] = "clean"

    def __post_init__(self) -> None:
        if self.freeze not in ("clean", "official"):
            raise ValueError(f'freeze must be "clean" or "official", got {self.freeze!r}.')

    @property
    def gives(self) -> frozenset[Fact]:
        return RECOMPUTED | {Fact.EXACT_REPLAY} if self.freeze == "clean" else RECOMPUTED

    def recompute(self, query: CacheQuery) -> Columns:
        if self.freeze == "clean" or query.row.last_needed is None:
            return columns((query.unfrozen, query.end))
        return columns((query.needed, query.end))
