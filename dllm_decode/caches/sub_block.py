"""Caching inside a block (Fast-dLLM v2)."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from dllm_decode.caches.base import CachePolicy, CacheQuery, Columns
from dllm_decode.caches.free import first_unfrozen


@dataclass(frozen=True)
class SubBlockCache(CachePolicy):
    """Freezes the rest of a block while one of its sub-blocks is decoded.

    The whole block is computed by its first forward, and as long as the first position of the open
    sub-block is masked; the other forwards compute that sub-block alone. What lies before the block
    is frozen once it is finished, as by `FreeCache()`. This goes with `SubBlocks`; under other
    schedules what is open is the sub-block. Columns differ per row; the row with the most sets the
    cost.

    Source: Wu et al. 2025, "Fast-dLLM v2: Efficient Block-Diffusion LLM",
    https://arxiv.org/abs/2509.26328, hierarchical caching; `use_block_cache` of the authors' code.
    """

    @property
    def reads_history(self) -> bool:
        return False

    def recompute(self, query: CacheQuery) -> Columns:
        unfrozen = first_unfrozen(query)
        if query.step == 0 and min(unfrozen) == max(unfrozen):
            return slice(unfrozen[0], query.end)
        device = query.canvas.tokens.device
        starts = torch.tensor(unfrozen, device=device)
        ends = torch.full_like(starts, query.end)
        if query.step > 0:
            first, end = _open(query)
            first_token = query.canvas.tokens.gather(1, first[:, None]).squeeze(-1)
            is_masked = first_token == query.canvas.mask_id
            starts, ends = torch.where(is_masked, starts, first), torch.where(is_masked, ends, end)
        # Only the device knows how many there are, so the host waits for it once more a step.
        columns = torch.arange(int((ends - starts).max()), device=device)
        return torch.minimum(starts[:, None] + columns, ends[:, None] - 1)


def _open(query: CacheQuery) -> tuple[Int[Tensor, " B"], Int[Tensor, " B"]]:
    """Returns the first column of each row's open positions, and the one behind the last."""
    canvas, needed = query.canvas, query.needed
    # The column that predicts the first of them is not one; nothing predicts column 0.
    first = needed.start + (query.shift if needed.start else 0)
    if canvas.opened is None:
        return torch.full_like(canvas.rows, first), torch.full_like(canvas.rows, needed.stop)
    columns = torch.arange(first, needed.stop, device=canvas.tokens.device)
    is_open = canvas.opened[:, columns - canvas.start]
    starts = torch.where(is_open, columns, query.end).amin(-1)
    return starts, torch.where(is_open, columns + 1, 0).amax(-1)
