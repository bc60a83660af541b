"""Refreshing everything once a token was committed in doubt (EntropyCache)."""

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Int
from torch import Tensor

from dllm_decode.caches.base import CachePolicy, CacheQuery
from dllm_decode.caches.history import History
from dllm_decode.core.canvas import Canvas
from dllm_decode.core.columns import Columns, columns, ranges_of
from samplers.checks import Number, count_from
from samplers.facts import Fact

_MASK, _TOKEN = 1, 2
# More than any number of forwards or columns.
_NEVER = 2**30


@dataclass(frozen=True)
class EntropyCache(CachePolicy):
    """Computes everything after a step that committed a token of high entropy.

    Other forwards compute the masks of the open block and the tokens that were committed last. No
    block begins with a computation of everything. Columns differ per row; the number of columns is
    rounded up to a multiple of 16.

    Source: 2026, "EntropyCache", https://arxiv.org/abs/2603.18489. The authors' code is not public:
    this follows the text, which gives no threshold that holds for other models.
    Differs: The entropy is that of the model's distribution at temperature 1, before `top_p` and
    `top_k`. Tokens are always computed once after they were committed, also with `last_k=0`.

    Attributes:
        threshold: Entropy in nats above which everything is computed; below 0: always.
        last_k: Tokens of the answer, committed last, that every forward computes.

    Raises:
        ValueError: If an attribute is outside its range.
    """

    threshold: Number = 0.1
    last_k: Annotated[int, count_from(0, "tokens")] = 64

    @property
    def needs(self) -> frozenset[Fact]:
        return frozenset({Fact.HAS_MASK, Fact.LAST_LOOK})

    def numbers(self, canvas: Canvas, history: History, shift: int) -> Int[Tensor, "B N"]:
        """Returns whether to compute everything, then for each column if it is a mask or recent."""
        is_mask = canvas.tokens == canvas.mask_id
        # Among tokens, only those that this round committed have an entropy above 0.
        doubt = history.last_look.entropy.masked_fill(is_mask, 0.0).amax(-1, keepdim=True)
        is_recent = self._is_recent(canvas, history, is_mask)
        kinds = _MASK * is_mask.long() + _TOKEN * is_recent.long()
        return torch.cat([(doubt > self.threshold).long(), kinds], -1)

    def _is_recent(self, canvas: Canvas, history: History, is_mask: Tensor) -> Tensor:
        """Returns the tokens that were never computed, and the `last_k` latest ones."""
        is_written = canvas.after_prompt & ~canvas.given & ~is_mask
        is_new = is_written & (history.clean_since == 0)
        places = torch.arange(canvas.width, device=is_mask.device)
        # Among tokens that one forward was the first to compute, the last columns come first.
        since = history.clean_since.masked_fill(is_new, _NEVER) * _NEVER + places
        latest = since.masked_fill(~is_written, -1).topk(min(self.last_k, canvas.width), -1).indices
        return is_new | (torch.zeros_like(is_new).scatter(1, latest, True) & is_written)

    def columns_to_compute(self, query: CacheQuery) -> Columns:
        numbers = query.row.numbers.cache
        if not numbers or numbers[0]:
            return columns((0, query.end))
        kinds, (start, stop) = numbers[1:], query.block
        chosen = {column for column in range(query.end) if kinds[column] == _TOKEN}
        chosen |= {
            max(0, column - query.shift) for column in range(start, stop) if kinds[column] == _MASK
        }
        return ranges_of(sorted(chosen))
