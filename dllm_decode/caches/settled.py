"""Caching from the left, once columns have settled (d3LLM's cache for pipelined blocks)."""

from dataclasses import dataclass
from typing import Annotated

from jaxtyping import Int
from torch import Tensor

from dllm_decode.caches.base import CachePolicy, CacheQuery
from dllm_decode.caches.history import History
from dllm_decode.core.canvas import Canvas
from dllm_decode.core.columns import Columns, columns
from samplers.checks import count_from
from samplers.facts import Fact


@dataclass(frozen=True)
class SettledCache(CachePolicy):
    """Freezes a column once it and all before it were computed `delay` times with their tokens.

    The frozen columns are a growing prefix of the row, prompt first; every forward computes all
    columns after this prefix. No block has to end first, so this suits canvases on which several
    blocks are open. Columns differ per row.

    Source: Qian et al. 2026, "d3LLM: Ultra-Fast Diffusion LLM using Pseudo-Trajectory
    Distillation", https://arxiv.org/abs/2601.07568, key-value cache of multi-block decoding.
    Differs: Columns are frozen one by one, not in whole blocks; frozen columns are not refreshed.

    Attributes:
        delay: Forwards of the row that compute a column after its token was committed.
    """

    delay: Annotated[int, count_from(1, "forwards")] = 2

    @property
    def gives(self) -> frozenset[Fact]:
        return frozenset({Fact.LOGITS_BEHIND_BLOCK})

    def numbers(self, canvas: Canvas, history: History, shift: int) -> Int[Tensor, "B 1"]:
        clean = history.clean_forwards.masked_fill(canvas.tokens == canvas.mask_id, 0)
        return (clean >= self.delay).long().cumprod(-1).sum(-1, keepdim=True)

    def columns_to_compute(self, query: CacheQuery) -> Columns:
        num_settled = (query.row.numbers.cache or (0,))[0]
        # The column that predicts the first mask is computed too.
        first = min(num_settled - query.shift, query.block[1] - 1)
        return columns((max(0, first), query.end))
