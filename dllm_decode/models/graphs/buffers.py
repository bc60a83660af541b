"""Memories at the same place, decode after decode."""

import weakref
from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from dllm_decode.models.base import KVCache, with_spare

Buffers: TypeAlias = tuple[Float[Tensor, " _"], Float[Tensor, " _"]]
"""Of keys and of values."""


class KVBufferPool:
    """Allocates memories with a spare slot, and keeps the buffers of one for the next decode.

    A recorded forward reads and writes keys and values where they were, so it serves again only if
    the next memory is there. Buffers are kept as large as the largest memory so far. While anybody
    holds a memory in them, further ones have buffers of their own.
    """

    def __init__(self) -> None:
        self._kept: Buffers | None = None
        self._given: weakref.ref[KVCache] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> "KVBufferPool":
        return KVBufferPool()

    def kv_cache(
        self, size: tuple[int, int, int, int, int], *, dtype: torch.dtype, device: torch.device
    ) -> KVCache:
        """Returns a zeroed memory.

        Args:
            size: Of its keys: layers, rows, heads, slots, and the size of a head.
            dtype: The same at every call.
            device: As `dtype`.
        """
        *outer, num_slots, head_dim = size
        shape = torch.Size([*outer, with_spare(num_slots), head_dim])
        if self._given is not None and self._given() is not None:
            return _viewed(_buffers(shape.numel(), dtype, device), shape).behind_first(num_slots)
        if self._kept is None or len(self._kept[0]) < shape.numel():
            # What is too small goes first.
            self._kept = None
            self._kept = _buffers(shape.numel(), dtype, device)
        whole = _viewed(self._kept, shape)
        for part in whole.buffers:
            part.zero_()
        self._given = weakref.ref(whole)
        return whole.behind_first(num_slots)


def _viewed(buffers: Buffers, shape: torch.Size) -> KVCache:
    keys, values = (part[: shape.numel()].view(shape) for part in buffers)
    return KVCache(keys, values)


def _buffers(num_elements: int, dtype: torch.dtype, device: torch.device) -> Buffers:
    # Whatever mode the caller is in: the next may be in another.
    with torch.inference_mode(False):
        keys, values = (torch.zeros(num_elements, dtype=dtype, device=device) for _ in range(2))
        return keys, values
