"""Caching block after block while several are open (d3LLM)."""

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Int
from torch import Tensor

from dllm_decode.caches.base import CachePolicy, CacheQuery
from dllm_decode.caches.history import History
from dllm_decode.core.canvas import Canvas
from dllm_decode.core.columns import Columns, columns
from samplers.checks import count_from
from samplers.facts import Fact

# Later than any forward.
_NEVER = 2**40


@dataclass(frozen=True)
class PipelineCache(CachePolicy):
    """Freezes whole blocks from the left, each some forwards after the one before.

    A finished block is frozen `delay` forwards after the block before it was frozen, or after the
    first forward that sees all its tokens if that is later; the prompt is frozen after the row's
    first `delay` forwards, at least one. While a finished block waits to be frozen, every forward
    computes everything; other forwards compute the columns that are not frozen, and each
    `refresh_every`-th computes everything. This goes with `MultiBlock`, whose blocks end one by
    one. Columns differ per row.

    Source: Qian et al. 2026, "d3LLM: Ultra-Fast Diffusion LLM using Pseudo-Trajectory
    Distillation", https://arxiv.org/abs/2601.07568, `generate_multi_block_kv_cache` of the authors'
    code: a delay of 2 and a refresh every 3 forwards.

    Attributes:
        block_length: Tokens per block that is frozen; usually as in the block schedule.
        delay: Forwards that a finished block waits before it is frozen.
        refresh_every: Forwards of a row from one computation of everything to the next; 0: none.
    """

    block_length: Annotated[int, count_from(1, "tokens")] = 32
    delay: Annotated[int, count_from(0, "forwards")] = 2
    refresh_every: Annotated[int, count_from(0, "forwards")] = 3

    @property
    def gives(self) -> frozenset[Fact]:
        return frozenset({Fact.LOGITS_BEHIND_BLOCK})

    def numbers(self, canvas: Canvas, history: History, shift: int) -> Int[Tensor, "B 2"]:
        """Returns how many blocks are frozen, with the prompt, and when the next one will be."""
        now = history.num_forwards + 1
        frozen_at = self._frozen_at(canvas, history, now)
        num_frozen = (frozen_at < now[:, None]).sum(-1, keepdim=True)
        return torch.cat([num_frozen, frozen_at.gather(1, num_frozen)], -1)

    def columns_to_compute(self, query: CacheQuery) -> Columns:
        row, now = query.row, query.row.nfe + 1
        num_frozen, next_at = row.numbers.cache or (0, now)
        computes_all = num_frozen == 0 or now < next_at < _NEVER // 2
        if self.refresh_every:
            computes_all |= next_at != now and now % self.refresh_every == 0
        if computes_all:
            return columns((0, query.end))
        in_prompt = (row.prompt_length - row.blocks_start) // self.block_length
        first = row.blocks_start + (in_prompt + num_frozen - 1) * self.block_length
        return columns((min(max(0, first - query.shift), query.block[1] - 1), query.end))

    def _frozen_at(
        self, canvas: Canvas, history: History, now: Int[Tensor, " B"]
    ) -> Int[Tensor, "B N"]:
        """Returns the number of the last forward before each block is frozen, the prompt first.

        The entry after the last block is of a block that is never frozen.
        """
        places = torch.arange(canvas.width, device=now.device)
        length = self.block_length
        # On a block-causal model the first block begins with the end of the prompt.
        firsts = (
            canvas.blocks_starts + (canvas.prompt_lengths - canvas.blocks_starts) // length * length
        )
        blocks = (places - firsts[:, None]) // length + 1
        is_masked = canvas.tokens == canvas.mask_id
        # A block counts as finished from the first forward on that computes all its tokens.
        since = history.clean_since
        clean_at = torch.where(since > 0, since, now[:, None])
        clean_at = clean_at.masked_fill(is_masked, _NEVER)
        clean_at = clean_at.masked_fill(blocks < 1, max(0, 1 - self.delay))
        inside = places < canvas.ends[:, None]
        num_blocks = canvas.width // self.block_length + 3
        finished = clean_at.new_full((len(canvas), num_blocks), _NEVER)
        index = torch.where(inside, blocks.clamp(min=0), num_blocks - 1)
        clean_at = clean_at.masked_fill(~inside, _NEVER)
        finished = finished.scatter_reduce(1, index, clean_at, "amax", include_self=False)
        # frozen_at[n] = max(finished[n], frozen_at[n - 1]) + delay, without a loop.
        waits = self.delay * torch.arange(num_blocks, device=now.device)
        return (finished - waits).cummax(-1).values + waits + self.delay
