"""Prefix caching (Fast-dLLM)."""

from dataclasses import dataclass
from typing import Annotated

from dllm_decode.caches.base import RECOMPUTED, CachePolicy, CacheQuery, refreshes
from dllm_decode.core.columns import Columns, columns
from samplers.checks import count_from
from samplers.facts import Fact


@dataclass(frozen=True)
class PrefixCache(CachePolicy):
    """Freezes all columns before the open block while it is open.

    The first forward of a block computes everything, the others the block and all columns after it.
    Exact on block-causal models, in which no column depends on a later block.

    Source: Wu et al. 2025, "Fast-dLLM: Training-free Acceleration of Diffusion LLM by Enabling KV
    Cache and Parallel Decoding", https://arxiv.org/abs/2505.22618, key-value cache for block-wise
    decoding.
    Differs: On a model whose logits predict the next column, the authors commit a block's first
    token from the first forward, at any confidence. Here the column before the block is computed
    too, and the sampler decides. `refresh_every` is an extension.

    Attributes:
        refresh_every: Forwards of a block from one computation of everything to the next; 0: only
            the first.
    """

    refresh_every: Annotated[int, count_from(0, "forwards")] = 0

    @property
    def gives(self) -> frozenset[Fact]:
        facts = RECOMPUTED | {Fact.BEGINS_BLOCKS_ANEW}
        return facts if self.refresh_every else facts | {Fact.EXACT_REPLAY}

    def columns_to_compute(self, query: CacheQuery) -> Columns:
        if refreshes(query.row.period_forwards, self.refresh_every):
            return columns((0, query.end))
        return columns((query.first_needed, query.end))
