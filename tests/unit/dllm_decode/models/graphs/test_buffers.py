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


@pytest.mark.parametrize("num_slots", [1, 63, 64, 200])
def test_a_cache_has_a_spare_slot_before_it_and_few_behind_it(num_slots: int) -> None:
    pool = KVBufferPool()
    kv_cache = new(pool, 3, num_slots)
    whole = pool.whole_of(kv_cache)
    assert kv_cache.keys.shape == kv_cache.values.shape == (2, 3, 1, num_slots, 4)
    assert whole.num_slots % 64 == 0
    assert whole.num_slots - num_slots in range(1, 65)
    kv_cache.keys[..., 0, :] = 1.0
    assert (whole.keys[..., 1, :] == 1.0).all()
    assert not whole.keys[..., 0, :].any()
    assert kv_cache.num_bytes == 2 * kv_cache.reserve.keys.nbytes


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


@pytest.mark.parametrize(
    "holds", [lambda cache: cache, lambda cache: cache.first(3), lambda cache: cache.widened(50)]
)
def test_a_cache_that_is_held_keeps_the_buffers(holds) -> None:
    pool = KVBufferPool()
    one = holds(new(pool, 3, 40))
    kept = place(one)
    one.keys.fill_(1.0)
    two, three = new(pool, 3, 40), new(pool, 3, 40)
    two.keys.fill_(2.0)
    assert len({place(kv_cache) for kv_cache in (one, two, three)}) == 3
    assert pool.whole_of(one) is not None
    assert pool.whole_of(two) is pool.whole_of(three) is None
    assert (one.keys == 1.0).all()
    assert not three.keys.any()
    del one
    assert place(new(pool, 3, 40)) == kept
    assert (two.keys == 2.0).all()


def test_a_wider_cache_stays_where_it_is_as_long_as_there_is_room() -> None:
    kv_cache = new(KVBufferPool(), 2, 40)
    kv_cache.keys.fill_(1.0)
    wider = kv_cache.widened(60)
    assert place(wider) == place(kv_cache)
    assert wider.num_slots == 60
    assert (wider.keys[..., :40, :] == 1.0).all()
    assert not wider.keys[..., 40:, :].any()


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


def test_a_cache_serves_in_and_out_of_inference_mode() -> None:
    pool = KVBufferPool()
    for inference in (True, False, True):
        with torch.inference_mode(inference):
            kv_cache = new(pool, 1, 4)
            kv_cache.keys.add_(1.0)
        kv_cache.keys.add_(1.0)
        assert (kv_cache.keys == 2.0).all()
        del kv_cache
