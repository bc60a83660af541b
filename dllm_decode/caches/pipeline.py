"""Caching block after block while several are open (d3LLM)."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from dllm_decode.caches.base import CachePolicy, CacheQuery, Columns, columns_from, require_count

# Later than any forward.
_NEVER = 2**40


@dataclass(frozen=True)
class PipelineCache(CachePolicy):
    """Freezes whole blocks from the left, each some forwards after the one before.

    A finished block is frozen `delay` forwards after the block before it was, or after its own
    last token if that is later; the prompt is frozen by the row's forward of this number. While a
    finished block waits for that, every forward computes everything; other forwards compute what is
    not frozen, and each `refresh_every`-th everything. This goes with `MultiBlock`, whose blocks
    end one by one. Rows keep their own pace; columns differ per row.

    Source: Qian et al. 2026, "d3LLM: Ultra-Fast Diffusion LLM using Pseudo-Trajectory
    Distillation", https://arxiv.org/abs/2601.07568, `generate_multi_block_kv_cache` of the authors'
    code: a delay of 2 and a refresh every 3 forwards.

    Attributes:
        block_length: Tokens per block that is frozen; that of the block schedule, usually.
        delay: Forwards that a finished block waits.
        refresh_every: Forwards of a row from one computation of everything to the next; 0: none.
    """

    block_length: int = 32
    delay: int = 2
    refresh_every: int = 3

    def __post_init__(self) -> None:
        require_count("block_length", self.block_length, least=1, unit="tokens")
        require_count("delay", self.delay, least=0)
        require_count("refresh_every", self.refresh_every, least=0)

    @property
    def computes_suffix(self) -> bool:
        return True

    def recompute(self, query: CacheQuery) -> Columns:
        now = query.num_forwards + 1
        frozen_at = self._frozen_at(query, now)
        num_frozen = (frozen_at < now[:, None]).sum(-1)
        # When the first block that is not frozen yet will be.
        next_at = frozen_at.gather(1, num_frozen[:, None]).squeeze(-1)
        computes_all = (num_frozen == 0) | ((next_at > now) & (next_at < _NEVER // 2))
        if self.refresh_every:
            computes_all |= (next_at != now) & (now % self.refresh_every == 0)
        firsts = self._prompt_end(query) + (num_frozen - 1) * self.block_length - query.shift
        return columns_from(firsts.masked_fill(computes_all, 0), query)

    def _frozen_at(self, query: CacheQuery, now: Int[Tensor, " B"]) -> Int[Tensor, "B N"]:
        """Returns the number of the forward by which each block is frozen, the prompt first.

        Behind the last block stands one that never is.
        """
        canvas, delay = query.canvas, self.delay
        columns = torch.arange(canvas.length, device=now.device)
        blocks = (columns - self._prompt_end(query)[:, None]) // self.block_length + 1
        # A block counts as finished from the first forward on that computes all its tokens.
        since = query.clean_since
        finished = torch.where(since > 0, since, now[:, None])
        finished = finished.masked_fill(canvas.tokens == canvas.mask_id, _NEVER)
        finished = finished.masked_fill(blocks < 1, max(0, 1 - delay))
        # What no column belongs to lies behind the answer.
        num_blocks = canvas.length // self.block_length + 3
        ends = finished.new_full((len(canvas), num_blocks), _NEVER)
        ends = ends.scatter_reduce(1, blocks.clamp(min=0), finished, "amax", include_self=False)
        # frozen_at[n] = max(finished[n], frozen_at[n - 1]) + delay, without a loop.
        waits = delay * torch.arange(num_blocks, device=now.device)
        return (ends - waits).cummax(-1).values + waits + delay

    def _prompt_end(self, query: CacheQuery) -> Int[Tensor, " B"]:
        """Returns the column at which each row's first block of the answer begins."""
        canvas, length = query.canvas, self.block_length
        # On a block-causal model it begins with the tail of the prompt; where rows have joined
        # others, before the region.
        return canvas.start + canvas.lead.div(length, rounding_mode="floor") * length
