import copy

import pytest
import torch

from dllm_decode import KVCache
from dllm_decode.models.graphs.buffers import KVBufferPool

CPU = torch.device("cpu")


def new(keeper: KVBufferPool, num_rows: int, num_slots: int) -> KVCache:
    return keeper.kv_cache((2, num_rows, 1, num_slots, 4), dtype=torch.float64, device=CPU)


def place(kv_cache: KVCache) -> tuple[int, int]:
    return kv_cache.keys.data_ptr(), kv_cache.values.data_ptr()


def test_a_memory_has_a_spare_slot_and_a_multiple_of_64() -> None:
    for num_slots in (1, 63, 64, 200):
        kv_cache = new(KVBufferPool(), 3, num_slots)
        assert kv_cache.keys.shape == kv_cache.values.shape == (2, 3, 1, num_slots, 4)
        assert kv_cache.whole.keys.shape[3] % 64 == 0
        assert kv_cache.whole.keys.shape[3] - num_slots in range(1, 65)
        kv_cache.keys[..., 0, :] = 1.0
        assert (kv_cache.whole.keys[..., 1, :] == 1.0).all()
        assert not kv_cache.whole.keys[..., 0, :].any()
        assert kv_cache.num_bytes == 2 * kv_cache.whole.keys.nbytes


@pytest.mark.parametrize("second", [(3, 40), (3, 63), (2, 40), (1, 100)], ids=str)
def test_the_next_memory_is_where_the_last_one_was_and_empty(second: tuple[int, int]) -> None:
    keeper = KVBufferPool()
    kv_cache = new(keeper, 3, 40)
    before = place(kv_cache)
    kv_cache.whole.keys.fill_(torch.nan)
    kv_cache.whole.values.fill_(torch.nan)
    del kv_cache
    kv_cache = new(keeper, *second)
    assert place(kv_cache) == before
    assert not kv_cache.whole.keys.any()
    assert not kv_cache.whole.values.any()


def test_a_memory_that_is_too_large_makes_room_for_those_behind_it() -> None:
    keeper = KVBufferPool()
    new(keeper, 1, 10)
    places = [place(new(keeper, *size)) for size in ((5, 70), (1, 10), (5, 70), (2, 80))]
    assert len(set(places)) == 1


@pytest.mark.parametrize(
    "holds",
    [lambda kv_cache: kv_cache, lambda kv_cache: kv_cache.first(3), lambda m: m.widened(50)],
)
def test_two_memories_at_a_time_are_apart(holds) -> None:
    keeper = KVBufferPool()
    one = holds(new(keeper, 3, 40))
    kept = place(one)
    one.keys.fill_(1.0)
    two = new(keeper, 3, 40)
    two.whole.keys.fill_(2.0)
    three = new(keeper, 3, 40)
    assert len({place(kv_cache) for kv_cache in (one, two, three)}) == 3
    assert (one.keys == 1.0).all()
    assert not three.keys.any()
    # Back to the kept one as soon as that is free, whoever else is there.
    del one
    assert place(new(keeper, 3, 40)) == kept
    assert (two.keys == 2.0).all()


def test_a_wider_memory_stays_where_it_is_as_long_as_there_is_room() -> None:
    kv_cache = new(KVBufferPool(), 2, 40)
    kv_cache.keys.fill_(1.0)
    wider = kv_cache.widened(60)
    assert place(wider) == place(kv_cache)
    assert wider.keys.shape[3] == 60
    assert (wider.keys[..., :40, :] == 1.0).all()
    assert not wider.keys[..., 40:, :].any()
    assert wider.whole is kv_cache.whole


def test_a_copy_has_a_spare_slot_too() -> None:
    kv_cache = new(KVBufferPool(), 2, 40)
    kv_cache.keys.fill_(1.0)
    kv_cache.values.fill_(2.0)
    wider = kv_cache.widened(64)
    assert wider.keys.shape[3] == wider.values.shape[3] == 64
    assert wider.whole.keys.shape[3] == 128
    assert (wider.keys[..., :40, :] == 1.0).all()
    assert (wider.values[..., :40, :] == 2.0).all()
    assert not wider.keys[..., 40:, :].any()
    wider.keys.fill_(3.0)
    assert (kv_cache.keys == 1.0).all()
    assert not wider.whole.keys[..., 0, :].any()


def test_a_memory_serves_in_and_out_of_inference_mode() -> None:
    keeper = KVBufferPool()
    for inference in (True, False, True):
        with torch.inference_mode(inference):
            kv_cache = new(keeper, 1, 4)
            kv_cache.keys.add_(1.0)
        kv_cache.keys.add_(1.0)
        assert (kv_cache.keys == 2.0).all()
        del kv_cache


def test_a_copied_keeper_keeps_its_own() -> None:
    keeper = KVBufferPool()
    kept = place(new(keeper, 1, 4))
    other = new(copy.deepcopy(keeper), 1, 4)
    assert place(other) != kept
    assert place(new(keeper, 1, 4)) == kept
