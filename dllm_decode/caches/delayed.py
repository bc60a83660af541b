"""Delayed caching (dKV-Cache)."""

from dataclasses import dataclass
from typing import Annotated

from jaxtyping import Int
from torch import Tensor

from dllm_decode.caches.base import CachePolicy, CacheQuery
from dllm_decode.caches.history import History
from dllm_decode.core.canvas import Canvas
from dllm_decode.core.columns import Columns, columns, ranges_of
from samplers.checks import count_from
from samplers.facts import Fact


@dataclass(frozen=True)
class DelayedCache(CachePolicy):
    """Freezes a column one forward after its token was committed, anywhere in the row.

    A forward computes the columns that are masked now or were masked in the forward before, because
    keys and values change most when a token takes the place of [MASK]. Columns differ per row; the
    number of columns is rounded up to a multiple of 16. Samplers see certainty at committed
    positions that are not computed.

    Source: Ma et al. 2025, "dKV-Cache: The Cache for Diffusion Language Models",
    https://arxiv.org/abs/2505.15781, dKV-Cache-Decode.
    Differs: Rows may commit different numbers of tokens. On a model whose logits predict the next
    column, a column is frozen once its own token and the one that it predicts are committed, which
    the authors call `un_right`; their default `un` freezes columns that are still [MASK].

    Attributes:
        refresh_every: Forwards of a block from one computation of everything to the next.
        warm_up: Forwards at the start of a block that compute everything: the authors' code has 2
            for LLaDA and 1 for Dream.
    """

    refresh_every: Annotated[int, count_from(1, "forwards")] = 8
    warm_up: Annotated[int, count_from(1, "forwards")] = 2

    @property
    def gives(self) -> frozenset[Fact]:
        return frozenset({Fact.LOGITS_BEHIND_BLOCK, Fact.BEGINS_BLOCKS_ANEW})

    def numbers(self, canvas: Canvas, history: History, shift: int) -> Int[Tensor, "B L"]:
        """Returns 1 for a column that is masked, was when last computed, or was never computed."""
        return history.pending(canvas).long()

    def columns_to_compute(self, query: CacheQuery) -> Columns:
        row, numbers = query.row, query.row.numbers.cache
        if not numbers or self._computes_all(row.period_forwards):
            return columns((0, query.end))
        fresh = {column for column in range(row.end) if numbers[column]}
        if query.shift:
            fresh |= {column - 1 for column in fresh if column}
            # The last column predicts nothing; as the authors do, compute it with the one before.
            fresh |= {row.end - 1} & {column + 1 for column in fresh}
        return ranges_of(column for column in sorted(fresh) if column < query.end)

    def _computes_all(self, num_forwards: int) -> bool:
        return num_forwards < self.warm_up or num_forwards % self.refresh_every == 0
