"""Caching inside a block (Fast-dLLM v2)."""

from dataclasses import dataclass

from dllm_decode.caches.base import CachePolicy, CacheQuery
from dllm_decode.core.columns import Columns, columns


@dataclass(frozen=True)
class SubBlockCache(CachePolicy):
    """Freezes the rest of a block while one of its sub-blocks is decoded.

    The first forward of a block computes the whole block, as do forwards before which the open
    sub-block's first position is masked; the other forwards compute the open sub-block alone. The
    columns before the block are frozen, as by `FreeCache()`. This goes with `SubBlocks`; under
    other schedules the open columns are the sub-block. Columns differ per row.

    Source: Wu et al. 2025, "Fast-dLLM v2: Efficient Block-Diffusion LLM",
    https://arxiv.org/abs/2509.26328, hierarchical caching; `use_block_cache` of the authors' code.
    """

    def columns_to_compute(self, query: CacheQuery) -> Columns:
        row, opening = query.row, query.row.opening
        if row.period_forwards > 0 and row.first_unsettled > opening.start:
            return columns(opening.bounds)
        return columns((query.first_unfrozen, query.end))
