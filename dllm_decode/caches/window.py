"""A window of what lies behind the open block (Streaming-dLLM), around any cache policy."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Int
from torch import Tensor

from dllm_decode.caches.base import CachePolicy, CacheQuery, Columns, require_count
from dllm_decode.caches.prefix import PrefixCache


@dataclass(frozen=True)
class SuffixWindow(CachePolicy):
    """Leaves out of the forward what lies far behind the open block.

    The next `width` columns and the very last one stay, at their true positions. The others are
    neither computed nor attended to until a later block brings them into the window. Of what stays,
    another policy says what is computed. On a block-causal model nothing lies behind the open
    block, and nothing changes.

    With `width=0, tail=0` blocks come into being when they are opened: nothing is computed for the
    others, and `gen_length` is an upper bound that costs nothing. So decode models that were
    trained on answers of growing length (dLLM-Var, https://arxiv.org/abs/2510.24605).

    Source: Streaming-dLLM 2026, https://arxiv.org/abs/2601.17917, attenuation guided suffix
    modelling as in the authors' code: a window of 96 to 192 columns around `PrefixCache()`. Their
    threshold is `DecayingThreshold`.
    Differs: Any cache policy may be inside; theirs is the prefix cache.

    Attributes:
        inner: Says which of the columns that stay are computed.
        width: Columns that stay behind the open block, beside the last ones.
        tail: Last columns of the canvas that stay.

    Raises:
        ValueError: If `inner` is no cache policy, or a number of columns is negative.
    """

    inner: CachePolicy = field(default_factory=PrefixCache)
    width: int = 96
    tail: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.inner, CachePolicy):
            raise ValueError(
                f"inner must be a cache policy such as PrefixCache(), got {self.inner!r}."
            )
        require_count("width", self.width, least=0, unit="columns")
        require_count("tail", self.tail, least=0, unit="columns")

    @property
    def recomputes_committed(self) -> bool:
        return self.inner.recomputes_committed

    @property
    def is_path_dependent(self) -> bool:
        return self.inner.is_path_dependent

    @property
    def commits_entry(self) -> bool:
        return self.inner.commits_entry

    @property
    def reads_history(self) -> bool:
        return self.inner.reads_history

    def hidden(self, query: CacheQuery) -> slice | None:
        start, last = query.needed.stop + self.width, query.end - self.tail
        return slice(start, last) if start < last else None

    def recompute(self, query: CacheQuery) -> Columns:
        chosen, hidden = self.inner.recompute(query), self.hidden(query)
        if hidden is None:
            return chosen
        if not isinstance(chosen, slice):
            return _without(chosen, hidden)
        first, end, _ = chosen.indices(query.end)
        if end <= hidden.start:
            return chosen
        device = query.canvas.tokens.device
        columns = torch.arange(first, end, device=device)
        kept = columns[(columns < hidden.start) | (columns >= hidden.stop)]
        return kept.expand(len(query.canvas), -1)


def _without(columns: Int[Tensor, "B Q"], hidden: slice) -> Int[Tensor, "B _"]:
    """Leaves columns out of ascending ones; the last of all stands in, where rows differ."""
    is_hidden = (columns >= hidden.start) & (columns < hidden.stop)
    # What stands in comes last, so that it can be cut off.
    shown = columns.masked_fill(is_hidden, hidden.stop).sort(-1).values
    most = int((~is_hidden).sum(-1).max())
    return shown[:, : max(1, most)]
