"""Plug-ins that reproduce bugs of official code, for the traces that were recorded with them."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dllm_decode.caches import CachePolicy, CacheQuery, DualCache, PrefixCache
from dllm_decode.core.columns import Columns, columns
from samplers import Decision, Fact, View, Wrapper
from samplers.view import by_row


@dataclass(frozen=True)
class EntryToken(Wrapper[Any]):
    """Commits the open block's first token, and no other, in the block's first step.

    Source: Wu et al. 2025, "Fast-dLLM", https://arxiv.org/abs/2505.22618, the authors' code for
    Dream: block forwards leave out the column before the block, which predicts that token.
    """

    def max_steps(self, num_masks: int) -> int:
        return self.base.max_steps(num_masks) + 1

    def init(self, view: View) -> Any:
        return self.base.init(view)

    def step(self, view: View, state: Any) -> tuple[Decision, Any]:
        decision, after = self.base.step(view, state)
        # Only the first step finds it masked, because no base re-masks.
        places = torch.arange(view.tokens.shape[1], device=view.tokens.device)
        first: Tensor = torch.zeros_like(view.tokens[:, :1]) + by_row(view.block_start)
        alone = view.eligible & (places == first)
        commit = torch.where(alone.any(-1, keepdim=True), alone, decision.commit)
        return replace(decision, commit=commit), after


@dataclass(frozen=True)
class WithoutEntry(CachePolicy):
    """Leaves out the column before the block in all forwards of a block but the first.

    Attributes:
        inner: `PrefixCache()` or `DualCache()`; the sampler must be an `EntryToken`.
    """

    inner: PrefixCache | DualCache

    @property
    def gives(self) -> frozenset[Fact]:
        return self.inner.gives

    def columns_to_compute(self, query: CacheQuery) -> Columns:
        chosen = self.inner.columns_to_compute(query)
        if query.row.period_forwards == 0:
            return chosen
        return columns((query.block[0], chosen[-1].stop))


@dataclass(frozen=True)
class StaleFreeCache(CachePolicy):
    """FreeCache as its authors wrote it: a block keeps the keys and values of its last forward.

    In that forward the tokens that it then committed were still [MASK]. Source: Hu et al. 2025,
    https://arxiv.org/abs/2505.21467.
    """

    @property
    def gives(self) -> frozenset[Fact]:
        return frozenset({Fact.LOGITS_BEHIND_BLOCK, Fact.LOGITS_OF_COMMITTED})

    def columns_to_compute(self, query: CacheQuery) -> Columns:
        first = (
            query.first_unfrozen if query.row.previous_first_needed is None else query.first_needed
        )
        return columns((first, query.end))
