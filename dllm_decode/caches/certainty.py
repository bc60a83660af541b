"""Computing the masks that are likely to be committed next (d2Cache)."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from dllm_decode.caches.base import CachePolicy, CacheQuery
from dllm_decode.caches.history import History
from dllm_decode.core.canvas import Canvas
from dllm_decode.core.columns import Columns, columns, ranges_of
from samplers.checks import count_from, positive
from samplers.facts import Fact
from samplers.logits.float64 import widest

_NEW = -1


@dataclass(frozen=True)
class CertaintyCache(CachePolicy):
    """Computes the masks that are likely to be committed next, and the newest tokens.

    A mask's score is the confidence of its last look times its certainty density: the share of
    settled columns around it, weighted by a Gaussian. The prompt counts as settled, and columns
    after the answer count as its last column does. A forward computes the `num_masks` masks of
    highest score, those of the open block first, and the tokens that the last step committed. Other
    open positions are not eligible in that step. Only a row's first forward computes everything, so
    that this policy suits one block for the whole answer. Columns differ per row; the number of
    columns is rounded up to a multiple of 16.

    Source: 2025, "d2Cache: Accelerating Diffusion-Based LLMs via Dual Adaptive Caching",
    https://arxiv.org/abs/2509.23094, certainty density and `inflate_w` of the authors' code.
    Differs: Columns are not also chosen by attention rollout, which fused attention does not give.
    The confidence is that of the last look; the authors' code keeps that of the first forward.
    Masks are chosen from whole blocks, up to the block with the `num_masks`-th mask; the authors'
    block shrinks as its tokens settle. Rows of a batch are not filled up with further columns. A
    mask that no look has predicted counts as certain.

    Attributes:
        num_masks: Masks that a forward computes, at most; the authors' `current_k`.
        sigma: Standard deviation of the Gaussian, in columns.
        fill: Gaps of fewer columns than this are computed too; the authors'
            `inflate_w`, 4 with blocks or with several tokens a step.

    Raises:
        ValueError: If an attribute is outside its range.
    """

    num_masks: Annotated[int, count_from(1, "masks")] = 32
    sigma: Annotated[float, positive("a number of columns")] = 10.0
    fill: Annotated[int, count_from(0, "columns")] = 0

    @property
    def needs(self) -> frozenset[Fact]:
        return frozenset({Fact.HAS_MASK, Fact.LAST_LOOK, Fact.DECIDES_ON_PART})

    def numbers(self, canvas: Canvas, history: History, shift: int) -> Int[Tensor, "B L"]:
        """Returns the rank of each mask by its score, from 1; -1 for new tokens, 0 for others."""
        is_mask = canvas.tokens == canvas.mask_id
        score = history.last_look.confidence * self._density(canvas, ~is_mask)
        order = score.masked_fill(~is_mask, -1.0).sort(dim=-1, descending=True, stable=True).indices
        rank = (order.argsort(-1) + 1).masked_fill(~is_mask, 0)
        is_new = canvas.after_prompt & ~canvas.given & ~is_mask & (history.clean_since == 0)
        return rank.masked_fill(is_new, _NEW)

    def _density(self, canvas: Canvas, settled: Tensor) -> Float[Tensor, "B L"]:
        """Returns the weighted share of settled columns around each column."""
        device = settled.device
        reach = math.ceil(4 * self.sigma)
        distances = torch.arange(-reach, reach + 1, device=device, dtype=widest(device))
        weights = torch.exp(-0.5 * (distances / self.sigma) ** 2)
        places = torch.arange(-reach, canvas.width + reach, device=device)
        nearest = places.clamp(min=0).minimum(canvas.ends[:, None] - 1)
        around = (settled.gather(1, nearest) | (places < 0)).to(weights.dtype)
        density = functional.conv1d(around[:, None], (weights / weights.sum())[None, None])
        # Rounded, so that densities that differ only by the order of a sum become equal.
        return density[:, 0].float()

    def columns_to_compute(self, query: CacheQuery) -> Columns:
        ranks = query.row.numbers.cache
        if not ranks:
            return columns((0, query.end))
        chosen = {column for column in range(query.end) if ranks[column] == _NEW}
        chosen |= {max(0, column - query.shift) for column in self._best(query, ranks)}
        for left, right in pairwise(sorted(chosen)):
            if right - left <= self.fill:
                chosen |= set(range(left, right))
        return ranges_of(sorted(chosen))

    def _best(self, query: CacheQuery, ranks: tuple[int, ...]) -> list[int]:
        """Returns the best masks; masks of the open block come before all others."""
        start, stop = query.row.opening.bounds
        masks = [column for column in range(start, query.end) if ranks[column] > 0]
        last = masks[min(self.num_masks, len(masks)) - 1]
        end = start + -(-(last + 1 - start) // (stop - start)) * (stop - start)
        near = [column for column in masks if column < end]
        return sorted(near, key=lambda column: (column >= stop, ranks[column]))[: self.num_masks]
