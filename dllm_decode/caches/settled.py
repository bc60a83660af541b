"""Caching from the left, once columns have settled (d3LLM's cache for pipelined blocks)."""

from dataclasses import dataclass

from dllm_decode.caches.base import (
    CachePolicy,
    CacheQuery,
    Columns,
    columns_from,
    require_count,
)


@dataclass(frozen=True)
class SettledCache(CachePolicy):
    """Freezes a column once it was computed `delay` times with its token, and so were all before.

    What is frozen is a growing beginning of the row, prompt first; everything behind it is
    computed at every forward. No block has to end for that, so it suits canvases on which several
    blocks are open. Columns differ per row.

    Source: Qian et al. 2026, "d3LLM: Ultra-Fast Diffusion LLM using Pseudo-Trajectory
    Distillation", https://arxiv.org/abs/2601.07568, key-value cache of multi-block decoding.
    Differs: Columns are frozen one by one, there whole blocks. No refresh of what is frozen.

    Attributes:
        delay: Forwards of the row that compute a column after its token was committed.
    """

    delay: int = 2

    def __post_init__(self) -> None:
        require_count("delay", self.delay, least=1)

    @property
    def computes_suffix(self) -> bool:
        return True

    def recompute(self, query: CacheQuery) -> Columns:
        settled = query.clean_forwards[:, : query.end] >= self.delay
        firsts = settled.long().cumprod(-1).sum(-1)
        # The column that predicts the first mask is computed too.
        return columns_from(firsts - query.shift, query)
