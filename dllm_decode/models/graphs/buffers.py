"""Key-value buffers that stay at one address, decode after decode."""

import weakref

import torch
from jaxtyping import Float
from torch import Tensor

from dllm_decode.core.model import KVCache, zeroed_cache
from dllm_decode.core.sizes import round_up

# Slots are allocated in multiples of this, so that prompts of similar length share graphs.
_STEP = 64


class KVBufferPool:
    """Allocates caches in one pair of buffers, which the next decode gets again.

    A captured forward reads and writes keys and values at fixed addresses, so it serves again only
    if the next cache lies there too. Slot 0 of a buffer is spare: no cache shows it, so that the
    columns and rows that pad a forward have somewhere to write. While a cache in the buffers is
    held by anybody, further ones are ordinary caches, which no graph serves.
    """

    def __init__(self) -> None:
        self._buffers: tuple[Float[Tensor, " _"], ...] = ()
        self._whole: KVCache | None = None
        self._given: weakref.ref[KVCache] | None = None
        self._most_slots = 0

    def new_kv_cache(
        self, size: tuple[int, int, int, int, int], *, dtype: torch.dtype, device: torch.device
    ) -> KVCache:
        """Returns a zeroed cache, whose reserve is as long as the buffers.

        Args:
            size: Layers, rows, heads, slots and head size.
            dtype: The same at every call, as the device.
            device: Of the buffers.
        """
        *outer, num_slots, head_dim = size
        if self._given is not None and self._given() is not None:
            return zeroed_cache(size, dtype, device)
        # Caches that were outgrown get the room that was missing, within reason.
        room = max(num_slots, min(self._most_slots, 2 * num_slots))
        shape = torch.Size([*outer, round_up(room + 1, _STEP), head_dim])
        if not self._buffers or len(self._buffers[0]) < shape.numel():
            # The old buffers go first: both may not fit.
            self._buffers, self._whole = (), None
            # Outside inference mode, so that callers in any mode can write.
            with torch.inference_mode(False):
                self._buffers = tuple(
                    torch.empty(shape.numel(), dtype=dtype, device=device) for _ in range(2)
                )
        keys, values = (part[: shape.numel()].view(shape).zero_() for part in self._buffers)
        self._whole = KVCache(keys, values)
        reserve = KVCache(keys[..., 1:, :], values[..., 1:, :])
        self._given = weakref.ref(reserve)
        return reserve.first(num_slots)

    def whole_of(self, kv_cache: KVCache) -> KVCache | None:
        """Returns the buffers that a cache lies in, spare slot first; `None`: in others."""
        if self._whole is None or kv_cache.further is not None:
            return None
        storage = kv_cache.keys.untyped_storage().data_ptr()
        if storage != self._whole.keys.untyped_storage().data_ptr():
            # Possibly a wider copy of one that was too short.
            self._most_slots = max(self._most_slots, kv_cache.num_slots)
            return None
        return self._whole
