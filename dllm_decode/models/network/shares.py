"""Shares of a layer's experts, each computed by one thread."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from threading import Barrier
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

# Reading an expert's weights takes about as long as multiplying this many tokens by them.
_TOKENS_PER_READ = 32


def equal_shares(ends: Int[Tensor, " E"], num_shares: int) -> list[slice]:
    """Divides the experts into shares that take about equally long."""
    counts = ends.diff(prepend=ends.new_zeros(1))
    costs = (counts + _TOKENS_PER_READ * (counts > 0)).cumsum(0)
    goals = costs[-1] * torch.arange(1, num_shares) // num_shares
    bounds = [0, *torch.searchsorted(costs, goals).add(1).tolist(), len(ends)]
    return [slice(start, end) for start, end in pairwise(bounds) if start < end]


def on_threads(work: Callable[..., Tensor], pieces: Sequence[tuple[Any, ...]]) -> list[Tensor]:
    """Calls work with each piece, on this thread and others; torch itself starts none meanwhile."""
    num_threads = torch.get_num_threads()
    results: dict[int, Tensor] = {}
    remaining = iter(enumerate(pieces))

    def take_pieces() -> None:
        for number, piece in remaining:
            results[number] = work(*piece)

    futures = [_pool(num_threads).submit(take_pieces) for _ in range(num_threads - 1)]
    torch.set_num_threads(1)
    try:
        take_pieces()
        for future in futures:
            # Do not wait for a thread that has not begun yet.
            if not future.cancel():
                future.result()
    finally:
        torch.set_num_threads(num_threads)
    return [results[number] for number in range(len(pieces))]


@cache
def _pool(num_threads: int) -> ThreadPoolExecutor:
    """Returns the threads besides the calling one; torch uses one thread in each."""
    pool, all_begun = ThreadPoolExecutor(num_threads - 1, "experts", _begin), Barrier(num_threads)
    for _ in range(num_threads - 1):
        pool.submit(all_begun.wait)
    all_begun.wait()
    # Each thread has its own setting; a later thread begins with the setting made last.
    torch.set_num_threads(num_threads)
    return pool


def _begin() -> None:
    # Both settings are of this thread alone.
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
