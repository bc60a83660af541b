"""A forward that is filled up gives what it gives alone, and leaves the same in its memory."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from pretended import forward, pooled
from tiny_models import FAMILIES, tiny

from dllm_decode import ForwardInputs, KVCache
from dllm_decode.models.graphs.buffers import KVBufferPool
from dllm_decode.models.graphs.padding import is_padded, num_columns, pad_to_bucket

V = 512


def test_columns_are_filled_up_to_few_numbers_that_are_little_more() -> None:
    assert [num_columns(n) for n in (1, 8, 9, 32, 33, 64, 65, 100, 129, 200, 257, 321, 1000)] == [
        8, 8, 16, 32, 40, 64, 80, 112, 160, 224, 320, 384, 1024
    ]  # fmt: skip
    for wished in range(1, 5000):
        filled = num_columns(wished)
        assert filled >= wished
        assert filled % 8 == 0
        assert num_columns(filled) == filled
        assert wished < 32 or filled <= 1.25 * wished
    assert len({num_columns(n) for n in range(1, 2049)}) == 44


def test_few_columns_are_padded_and_to_rows_that_are_not_there_fewer_still() -> None:
    def pays(num_rows: int, limit: int, width: int) -> bool:
        whole = KVCache(*torch.empty(2, 1, limit, 1, 64, 1))
        inputs = forward(whole, width, num_rows=num_rows)
        return is_padded(inputs, whole, max_columns=960)

    assert pays(40, 40, 24)
    assert not pays(40, 40, 25)
    assert pays(1, 64, 8)
    assert not pays(1, 65, 8)
    assert pays(65, 65, 8)


def random_forward(
    model: Any, size: tuple[int, int, int, int], kinds: tuple[str, str, str]
) -> tuple[ForwardInputs, KVCache]:
    """Returns a forward, and the whole buffers of its cache, which have room for more."""
    limit, B, Q, K = size
    slots, rows, attend = kinds
    random = torch.Generator().manual_seed(7)
    columns = torch.rand(B, K, generator=random).argsort(1)[:, :Q].sort(1)[0]
    if slots == "slice":
        columns = torch.arange(3, 3 + Q).repeat(B, 1)
    elif slots == "repeated":
        columns[:, -3:] = columns[:, -4:-3]
    seen = torch.rand(B, Q if attend == "per query" else 1, K, generator=random) < 0.6
    seen[..., :4] = True
    pool = KVBufferPool()
    kv_cache = pooled(model, limit, K + 70, pool).first(K)
    whole = pool.whole_of(kv_cache)
    assert whole is not None
    # Hidden columns hold numbers, so that a read of them shows.
    for part in whole.buffers:
        part.copy_(torch.randn(part.shape, generator=random, dtype=part.dtype))
    inputs = ForwardInputs(
        # Repeated columns repeat their tokens, as those of a canvas do.
        tokens=torch.randint(V, (B, K), generator=random).gather(1, columns),
        positions=columns + torch.randint(9, (B, 1), generator=random),
        wanted=torch.randint(Q, (B, 5), generator=random),
        attend=None if attend == "none" else seen,
        kv_cache=kv_cache,
        slots=slice(3, 3 + Q) if slots == "slice" else columns,
        rows={
            "all": None,
            "slice": slice(limit - B, limit),
            "tensor": torch.randperm(limit, generator=random)[:B],
        }[rows],
    )
    return inputs, whole


KINDS = [
    (slots, rows, attend)
    for slots in ("slice", "tensor", "repeated")
    for rows in ("all", "slice", "tensor")
    for attend in ("none", "one row", "per query")
]
# Rows of the memory, rows, columns, keys.
SIZES = {
    "few rows, odd numbers": (24, 5, 11, 50),
    "all rows but one, which fill the memory": (10, 9, 13, 50), "all rows": (8, 8, 16, 50),
    "more than enough columns": (16, 3, 67, 90), "nothing but a mask is added": (12, 8, 16, 63),
    "one key more than that": (12, 8, 16, 64),
}  # fmt: skip


@pytest.mark.exhaustive(12)
@pytest.mark.parametrize(
    ("kinds", "size", "family"),
    [
        pytest.param(kinds, size, FAMILIES[n % len(FAMILIES)], id=f"{'-'.join(kinds)}-{name}-{n}")
        for n, (kinds, (name, size)) in enumerate(product(KINDS, SIZES.items()))
    ],
)
def test_a_forward_that_is_filled_up_gives_the_same(
    kinds: tuple[str, str, str], size: tuple[int, int, int, int], family: str
) -> None:
    if kinds[1] == "all":
        size = (size[1], *size[1:])
    limit, _, width, num_keys = size
    model = tiny(family)
    inputs, whole = random_forward(model, size, kinds)
    before, alone = separate(whole), separate(inputs.kv_cache)
    expected = model.predict(replace(inputs, kv_cache=alone))
    padded = pad_to_bucket(inputs, whole)
    assert padded.inputs.tokens.shape == (limit, num_columns(width))
    assert padded.inputs.wanted.shape == (limit, 8)
    got = padded.cut(model.predict(padded.inputs))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-9)
    index = torch.arange(limit)[slice(None) if inputs.rows is None else inputs.rows]
    slots = inputs.slots
    if isinstance(slots, slice):
        slots = torch.arange(num_keys)[slots].expand_as(inputs.tokens)
    written = torch.zeros(limit, num_keys, dtype=torch.bool)
    written[index[:, None], slots] = True
    own = slice(1, 1 + num_keys)
    for now, then, wanted in zip(whole.buffers, before.buffers, alone.buffers, strict=True):
        torch.testing.assert_close(now[:, :, :, own], wanted, rtol=0, atol=1e-9)
        # Exactly: nothing else was written, but to the spare slot.
        now, then = now.movedim(3, 2), then.movedim(3, 2)
        assert torch.equal(now[:, :, own][:, ~written], then[:, :, own][:, ~written])
        assert torch.equal(now[:, :, own.stop :], then[:, :, own.stop :])


def separate(kv_cache: KVCache) -> KVCache:
    return KVCache(kv_cache.keys.clone(), kv_cache.values.clone())
