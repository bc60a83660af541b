"""Key-value buffers that the next decode gets again."""

import torch

from dllm_decode import KVCache
from dllm_decode.models.graphs.buffers import KVBufferPool

CPU = torch.device("cpu")


def new(pool: KVBufferPool, num_rows: int, num_slots: int) -> KVCache:
    return pool.new_kv_cache((2, num_rows, 1, num_slots, 4), dtype=torch.float64, device=CPU)


def place(kv_cache: KVCache) -> tuple[int, int]:
    return kv_cache.keys.data_ptr(), kv_cache.values.data_ptr()


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
