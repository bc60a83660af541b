"""Prefix and suffix caching (Fast-dLLM's DualCache, dInfer's vicinity refresh)."""

from dataclasses import dataclass
from typing import Annotated

from dllm_decode.caches.base import CachePolicy, CacheQuery, refreshes
from dllm_decode.core.columns import Columns, columns
from samplers.checks import count_from
from samplers.facts import Fact


@dataclass(frozen=True)
class DualCache(CachePolicy):
    """Freezes all columns outside the open block while it is open, the masked suffix too.

    The first forward of a block computes everything, the others the block alone.

    Source: Wu et al. 2025, "Fast-dLLM: Training-free Acceleration of Diffusion LLM by Enabling KV
    Cache and Parallel Decoding", https://arxiv.org/abs/2505.22618, DualCache. `refresh_every`,
    `before` and `after`: inclusionAI 2025, "dInfer: An Efficient Inference Framework for Diffusion
    Language Models", https://arxiv.org/abs/2510.08666, vicinity refresh.
    Differs: As `PrefixCache` on models whose logits predict the next column.

    Attributes:
        refresh_every: Forwards of a block from one computation of everything to the next; 0: only
            the first.
        before: Columns before the block that are computed with it.
        after: Columns after the block that are computed with it.
    """

    refresh_every: Annotated[int, count_from(0, "forwards")] = 0
    before: Annotated[int, count_from(0, "columns")] = 0
    after: Annotated[int, count_from(0, "columns")] = 0

    @property
    def gives(self) -> frozenset[Fact]:
        facts = frozenset({Fact.LOGITS_OF_COMMITTED, Fact.BEGINS_BLOCKS_ANEW})
        return facts if self.refresh_every else facts | {Fact.EXACT_REPLAY}

    def columns_to_compute(self, query: CacheQuery) -> Columns:
        if refreshes(query.row.period_forwards, self.refresh_every):
            return columns((0, query.end))
        start = max(0, query.first_needed - self.before)
        return columns((start, min(query.end, query.block[1] + self.after)))
