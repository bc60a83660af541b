"""Key-value buffers that stay at one address, decode after decode."""

import weakref
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from dllm_decode.models.base import KVCache, zeroed_cache
from dllm_decode.sizes import round_up

# Slots are allocated in multiples of this, so that prompts of similar length share graphs.
_STEP = 64


@dataclass
class KVBufferPool:
    """Allocates caches in one pair of buffers, which the next decode gets again.

    A captured forward reads and writes keys and values at fixed addresses, so it serves again only
    if the next cache lies there too. Slot 0 of a buffer is spare: no cache shows it, so that the
    columns and rows that pad a forward have somewhere to write. While a cache in the buffers is
    held by anybody, further ones are ordinary caches, which no graph serves.
    """

    _buffers: tuple[Float[Tensor, " _"], Float[Tensor, " _"]] | None = field(
        default=None, init=False
    )
    _shape: torch.Size = field(default_factory=lambda: torch.Size([]), init=False)
    _given: "weakref.ref[KVCache] | None" = field(default=None, init=False)
    _most_slots: int = field(default=0, init=False)

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
        num_slots = max(num_slots, min(self._most_slots, 2 * num_slots))
        self._shape = torch.Size([*outer, round_up(num_slots + 1, _STEP), head_dim])
        if self._buffers is None or len(self._buffers[0]) < self._shape.numel():
            # The old buffers go first: both may not fit.
            self._buffers = None
            # Outside inference mode, so that callers in any mode can write.
            with torch.inference_mode(False):
                keys, values = (
                    torch.zeros(self._shape.numel(), dtype=dtype, device=device) for _ in range(2)
                )
            self._buffers = (keys, values)
        whole = self._whole()
        for part in whole.buffers:
            part.zero_()
        reserve = KVCache(whole.keys[..., 1:, :], whole.values[..., 1:, :])
        self._given = weakref.ref(reserve)
        return KVCache(
            reserve.keys[..., : size[3], :], reserve.values[..., : size[3], :], reserve=reserve
        )

    def whole_of(self, kv_cache: KVCache) -> KVCache | None:
        """Returns the buffers that a cache lies in, spare slot first; `None`: in others."""
        if self._buffers is None or kv_cache.further is not None:
            return None
        storage = kv_cache.keys.untyped_storage().data_ptr()
        if storage != self._buffers[0].untyped_storage().data_ptr():
            # Possibly a wider copy of one that was too short.
            self._most_slots = max(self._most_slots, kv_cache.num_slots)
            return None
        return self._whole()

    def _whole(self) -> KVCache:
        assert self._buffers is not None
        keys, values = (part[: self._shape.numel()].view(self._shape) for part in self._buffers)
        return KVCache(keys, values)
