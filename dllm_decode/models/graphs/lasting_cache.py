"""A KV cache that lasts, so that graphs find keys and values at the same addresses."""

import weakref
from collections.abc import Callable

from dllm_decode.core.model import KVCache
from dllm_decode.core.sizes import round_up

SLOT_STEP = 128


def power_of_two(count: int) -> int:
    """Returns the smallest power of two that is not below `count`."""
    return 1 << (count - 1).bit_length()


class LastingCache:
    """One KV cache, lent to one decode after the other.

    Slot 0 is not lent: padded rows write to it. A lent cache is free again once nothing refers to
    it.

    Attributes:
        whole: All rows and slots; `None` before the first decode.
    """

    def __init__(self, allocate: Callable[[int, int], KVCache]) -> None:
        """Begins without memory; `allocate` returns a cache with this many rows and slots."""
        self.whole: KVCache | None = None
        self._allocate = allocate
        self._lent: weakref.ref[KVCache] | None = None

    @property
    def is_lent(self) -> bool:
        """True while a decode has the cache."""
        return self._lent is not None and self._lent() is not None

    def has(self, cache: KVCache) -> bool:
        """Returns whether the keys of a cache are those that were lent."""
        lent = None if self._lent is None else self._lent()
        return lent is not None and lent.keys.data_ptr() == cache.keys.data_ptr()

    def has_room(self, num_rows: int, num_slots: int) -> bool:
        """Returns whether there are so many rows and slots."""
        if self.whole is None:
            return False
        rows, slots = self.whole.keys.shape[1], self.whole.num_slots - 1
        return num_rows <= rows and num_slots <= slots

    def replace(self, num_rows: int, num_slots: int) -> None:
        """Takes new memory for so many rows and slots, after the old memory is free."""
        self.whole = None
        self.whole = self._allocate(power_of_two(num_rows), round_up(num_slots + 1, SLOT_STEP))

    def lend(self, num_rows: int, num_slots: int) -> KVCache:
        """Returns the first rows and slots, zeroed; further slots are its reserve."""
        assert self.whole is not None
        for buffer in self.whole.buffers:
            # Padded rows too, because NaN of a decode before would reach the results.
            buffer[:, : power_of_two(num_rows)].zero_()
        keys, values = (buffer[:, :num_rows, :, 1:] for buffer in self.whole.buffers)
        lent = KVCache(keys, values)
        self._lent = weakref.ref(lent)
        return lent.first(num_slots)
