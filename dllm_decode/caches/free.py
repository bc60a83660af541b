"""Caching without any refresh (FreeCache)."""

from dataclasses import dataclass

from dllm_decode.caches.base import RECOMPUTED, CachePolicy, CacheQuery
from dllm_decode.core.columns import Columns, columns
from samplers.facts import Fact


@dataclass(frozen=True)
class FreeCache(CachePolicy):
    """Freezes the prompt after the first forward and every block once it is finished, for good.

    On a block-causal model this is exact block caching: a block's keys and values last from the
    first forward that sees all its tokens, which is the first one of the next block, so that no
    forward is spent on storing keys and values.

    Source: Hu et al. 2025, "Accelerating Diffusion Language Model Inference via Efficient KV
    Caching and Guided Diffusion", https://arxiv.org/abs/2505.21467, FreeCache.
    Differs: A finished block is computed once more in the first forward of the next. The authors'
    code keeps the keys and values of the block's last forward, in which the tokens that it then
    committed were still [MASK].
    """

    @property
    def gives(self) -> frozenset[Fact]:
        return RECOMPUTED | {Fact.EXACT_REPLAY}

    def columns_to_compute(self, query: CacheQuery) -> Columns:
        return columns((query.first_unfrozen, query.end))
