"""Key-value buffers that the next decode gets again."""

import pytest
import torch

from dllm_decode import KVCache
from dllm_decode.models.graphs.buffers import KVBufferPool

CPU = torch.device("cpu")


def new(pool: KVBufferPool, num_rows: int, num_slots: int) -> KVCache:
    return pool.new_kv_cache((2, num_rows, 1, num_slots, 4), dtype=torch.float64, device=CPU)


def place(kv_cache: KVCache) -> tuple[int, int]:
    return kv_cache.keys.data_ptr(), kv_cache.values.data_ptr()


@pytest.mark.parametrize("second", [(3, 40), (3, 63), (2, 40), (1, 100)], ids=str)
def test_the_next_cache_is_where_the_last_one_was_and_empty(second: tuple[int, int]) -> None:
    pool = KVBufferPool()
    kv_cache = new(pool, 3, 40)
    before = place(kv_cache)
    for part in pool.whole_of(kv_cache).buffers:
        part.fill_(torch.nan)
    del kv_cache
    kv_cache = new(pool, *second)
    assert place(kv_cache) == before
    assert not any(part.any() for part in pool.whole_of(kv_cache).buffers)


def test_a_cache_beside_one_that_is_held_is_an_ordinary_one() -> None:
    pool = KVBufferPool()
    held, other = new(pool, 3, 40), new(pool, 3, 40)
    assert place(held) != place(other)
    assert pool.whole_of(held) is not None
    assert pool.whole_of(other) is None


def test_a_cache_that_was_outgrown_gets_more_room_the_next_time() -> None:
    """Tree drafts, and longer prompts that join, once left the buffers in every decode."""
    pool = KVBufferPool()
    kv_cache = new(pool, 2, 40)
    kv_cache.keys.fill_(1.0)
    wider = kv_cache.widened(70)
    assert place(wider) != place(kv_cache)
    assert (wider.keys[..., :40, :] == 1.0).all()
    assert not wider.keys[..., 40:, :].any()
    assert pool.whole_of(wider) is None
    del kv_cache, wider
    kv_cache = new(pool, 2, 40)
    assert kv_cache.num_slots == 40
    assert place(kv_cache.widened(70)) == place(kv_cache)
