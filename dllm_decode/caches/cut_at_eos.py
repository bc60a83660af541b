"""Columns after an EOS left out (Learn2PD's end of text), around any cache policy."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from dllm_decode.caches.base import CacheQuery
from dllm_decode.caches.hiding import Hiding
from dllm_decode.caches.history import History
from dllm_decode.core.canvas import Canvas
from dllm_decode.core.columns import Columns, columns, without
from samplers.facts import Fact


@dataclass(frozen=True)
class CutAtEos(Hiding):
    """Leaves the columns after an EOS out of the forward, once all of them are settled.

    The columns are neither computed nor attended to. The columns of the open block stay. If
    the decode does not set `truncate_at_eos`, masks after an EOS prevent the cut. On a
    block-causal model, where a forward sees no column after the open block, nothing changes.

    Source: Bao et al. 2025, "Learning to Parallel", https://arxiv.org/abs/2509.25188, whose
    end-of-text prediction shortens the canvas.
    Differs: The open block stays whole, so that a filter of `Learn2PD` reads a whole block.

    Attributes:
        inner: The policy that says which of the remaining columns are computed.

    Raises:
        ValueError: If `inner` is not a cache policy, or hides columns itself.
    """

    @property
    def gives(self) -> frozenset[Fact]:
        return self.inner.gives - {Fact.EVERY_COLUMN}

    def numbers(self, canvas: Canvas, history: History, shift: int) -> Int[Tensor, "B N"]:
        """Returns the numbers of `inner`, then the first column that may be cut."""
        indices = torch.arange(canvas.width, device=canvas.tokens.device)
        first_eos = torch.where(canvas.eos, indices, canvas.width).amin(-1)
        last_unsettled = torch.where(canvas.unsettled, indices, -1).amax(-1)
        end = torch.maximum(first_eos, last_unsettled)[:, None] + 1
        inner_numbers = self.inner.numbers(canvas, history, shift)
        return end if inner_numbers is None else torch.cat([inner_numbers, end], -1)

    def hidden(self, query: CacheQuery) -> Columns:
        numbers = query.row.numbers.cache
        end = max(numbers[-1], query.row.opening.phase[1]) if numbers else query.end
        return columns((min(end, query.end), query.end))

    def columns_to_compute(self, query: CacheQuery) -> Columns:
        numbers = query.row.numbers
        inner_numbers = numbers._replace(cache=numbers.cache[:-1])
        row = query.row._replace(numbers=inner_numbers)
        return without(self.inner.columns_to_compute(query._replace(row=row)), self.hidden(query))
