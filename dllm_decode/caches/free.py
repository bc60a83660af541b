"""Caching without any refresh (FreeCache)."""

from dataclasses import dataclass
from typing import Literal

import torch

from dllm_decode.caches.base import CachePolicy, CacheQuery, Columns


@dataclass(frozen=True)
class FreeCache(CachePolicy):
    """Freezes the prompt after the first forward and every block once it is finished, for good.

    On a block-causal model `freeze="clean"` is exact block caching: a block's keys and values last
    from the first forward that sees all its tokens, which is the first one of the next block, so
    no forward is spent on storing them.

    Source: Hu et al. 2025, "Accelerating Diffusion Language Model Inference via Efficient KV
    Caching and Guided Diffusion", https://arxiv.org/abs/2505.21467, FreeCache.
    Differs: "clean" computes a finished block once more in the first forward of the next. The
    authors' code, which is "official", keeps what the block's last forward computed, when the
    tokens it was about to commit were still [MASK]; with one step a block it also misplaces the
    first block, which is not reproduced.

    Attributes:
        freeze: Whether a finished block lasts as its own tokens ("clean"), or as its last forward
            saw it ("official").
    """

    freeze: Literal["clean", "official"] = "clean"

    def __post_init__(self) -> None:
        if self.freeze not in ("clean", "official"):
            raise ValueError(f'freeze must be "clean" or "official", got {self.freeze!r}.')

    @property
    def computes_suffix(self) -> bool:
        return True

    @property
    def recomputes_committed(self) -> bool:
        return True

    @property
    def reads_history(self) -> bool:
        return False

    @property
    def is_path_dependent(self) -> bool:
        return self.freeze == "official"

    def recompute(self, query: CacheQuery) -> Columns:
        if self.freeze == "clean":
            starts = first_unfrozen(query)
        else:
            starts = [0 if first is None else query.needed.start for first in query.previous]
        first = min(starts)
        if first == max(starts):
            return slice(first, query.end)
        # A row that skipped a block, since its template left nothing open there, lags behind.
        device = query.canvas.tokens.device
        columns = torch.arange(first, query.end, device=device)
        return torch.maximum(columns, torch.tensor(starts, device=device)[:, None])


def first_unfrozen(query: CacheQuery) -> list[int]:
    """Returns each row's first column that was not computed when its block was finished."""
    start: int = query.needed.start
    return [0 if previous is None else min(previous, start) for previous in query.previous]
