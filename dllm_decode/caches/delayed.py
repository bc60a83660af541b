"""Delayed caching (dKV-Cache)."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dllm_decode.caches.base import CachePolicy, CacheQuery, Columns, require_count
from dllm_decode.sizes import round_up

# Numbers of columns are rounded up to a multiple of this, so that few shapes occur: libraries keep
# scratch, and graphs are captured, for each.
_STRIDE = 16


@dataclass(frozen=True)
class DelayedCache(CachePolicy):
    """Freezes a column one forward after its token was committed, wherever it stands.

    Computed are the columns that are masked now or were masked in the forward before, since keys
    and values change most when a token takes the place of [MASK]. Columns differ per row; the row
    with the most sets the cost, in steps of 16 columns. Samplers see certainty at committed
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

    refresh_every: int = 8
    warm_up: int = 2

    def __post_init__(self) -> None:
        require_count("refresh_every", self.refresh_every, least=1)
        require_count("warm_up", self.warm_up, least=1)

    @property
    def computes_suffix(self) -> bool:
        return True

    def recompute(self, query: CacheQuery) -> Columns:
        if self._computes_all(query.step):
            return slice(0, query.end)
        fresh = _fresh(query)
        # Only the device knows how many there are, so the host waits for it once more a step.
        return _columns(fresh, int(fresh.sum(-1).max()))

    def _computes_all(self, step: int) -> bool:
        return step < self.warm_up or step % self.refresh_every == 0


def _fresh(query: CacheQuery) -> Bool[Tensor, "B E"]:
    """Marks what is masked, or was when it was computed last."""
    canvas = query.canvas
    # A token that was re-masked is masked now, whatever it was.
    fresh = query.pending | (canvas.tokens == canvas.mask_id)
    if query.shift:
        fresh[:, :-1] |= fresh[:, 1:].clone()
        # The last column predicts nothing; it waits for the one before, as the authors' does.
        fresh[:, -1] |= fresh[:, -2]
    return fresh[:, : query.end]


def _columns(where: Bool[Tensor, "B E"], most: int) -> Int[Tensor, "B Q"]:
    """Lists each row's columns, its last one repeated up to about the longest row's number."""
    columns = torch.arange(where.shape[1], device=where.device)
    last = torch.where(where, columns, 0).amax(-1, keepdim=True)
    listed = torch.where(where, columns, where.shape[1]).sort(-1).values
    return torch.minimum(listed[:, : round_up(most, _STRIDE)], last)
