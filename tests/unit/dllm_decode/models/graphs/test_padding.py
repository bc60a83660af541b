"""A forward that is filled up gives what it gives alone, and leaves the same in its memory."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from pretended import pooled
from tiny_models import FAMILIES, tiny
from torch import Tensor

from dllm_decode import ForwardInputs, KVCache
from dllm_decode.models.graphs.buffers import KVBufferPool
from dllm_decode.models.graphs.padding import num_columns, pad_to_bucket

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


class Case:
    """A random forward, what it gives, and a memory that has room for more."""

    def __init__(
        self, model: Any, seed: int, *, size: tuple[int, int, int, int], kinds: tuple[str, ...]
    ) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.model, (self.limit, B, Q, self.num_keys) = model, size
        slots, rows, attend = kinds
        columns = self._columns(slots, (B, Q))
        kv_cache = self._cache()
        # Repeated columns repeat their tokens, as those of a canvas do.
        canvas = torch.randint(V, (B, self.num_keys), generator=self.random)
        self.index = {
            "all": torch.arange(self.limit)[:B],
            "slice": torch.arange(self.limit - B, self.limit),
            "tensor": torch.randperm(self.limit, generator=self.random)[:B],
        }[rows]
        self.inputs = ForwardInputs(
            tokens=canvas.gather(1, columns),
            positions=columns + torch.randint(9, (B, 1), generator=self.random),
            wanted=torch.randint(Q, (B, 5), generator=self.random),
            attend=self._attend(attend, (B, Q, self.num_keys)),
            kv_cache=kv_cache,
            slots={"slice": slice(3, 3 + Q)}.get(slots, columns),
            rows={"all": None, "slice": slice(self.limit - B, self.limit)}.get(rows, self.index),
        )

    def _columns(self, slots: str, size: tuple[int, int]) -> Tensor:
        B, Q = size
        if slots == "slice":
            return torch.arange(3, 3 + Q).repeat(B, 1) % self.num_keys
        places = torch.rand(B, self.num_keys, generator=self.random).argsort(1)[:, :Q].sort(1)[0]
        if slots == "repeated":
            places[:, -3:] = places[:, -4:-3]
        return places

    def _cache(self) -> KVCache:
        pool = KVBufferPool()
        kv_cache = pooled(self.model, self.limit, self.num_keys + 70, pool).first(self.num_keys)
        # What is hidden is anything but zero.
        self.whole = pool.whole_of(kv_cache)
        for part in self.whole.buffers:
            part.copy_(torch.randn(part.shape, generator=self.random, dtype=part.dtype))
        return kv_cache

    def _attend(self, attend: str, size: tuple[int, int, int]) -> Tensor | None:
        B, Q, K = size
        if attend == "none":
            return None
        seen = torch.rand(B, Q if attend == "per query" else 1, K, generator=self.random) < 0.6
        seen[..., :4] = True
        return seen


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
    kinds: tuple[str, ...], size: tuple[int, int, int, int], family: str
) -> None:
    if kinds[1] == "all":
        size = (size[1], *size[1:])
    check(Case(tiny(family), 7, size=size, kinds=kinds), 1e-9)


def check(case: Case, tolerance: float) -> None:
    inputs, kv_cache, whole = case.inputs, case.inputs.kv_cache, case.whole
    alone = replace(inputs, kv_cache=separate(kv_cache))
    expected = case.model.predict(alone)
    before = separate(whole)
    padded = pad_to_bucket(inputs, whole)
    got = padded.cut(case.model.predict(padded.inputs))
    assert got.shape == expected.shape
    torch.testing.assert_close(got, expected, rtol=0, atol=tolerance)
    written = torch.zeros(case.limit, case.num_keys, dtype=torch.bool)
    there = torch.arange(case.num_keys)[inputs.slots] if isinstance(inputs.slots, slice) else None
    slots = inputs.slots if there is None else there.expand_as(inputs.tokens)
    written[case.index[:, None], slots] = True
    for now, then, wanted in zip(
        whole.buffers, before.buffers, alone.kv_cache.buffers, strict=True
    ):
        mine = now[:, :, :, 1 : 1 + case.num_keys]
        torch.testing.assert_close(mine, wanted, rtol=0, atol=tolerance)
        # Exactly: nothing else was written, but to the spare slot.
        old = then[:, :, :, 1 : 1 + case.num_keys]
        assert torch.equal(mine.movedim(3, 2)[:, ~written], old.movedim(3, 2)[:, ~written])
        assert torch.equal(now[:, :, :, 1 + case.num_keys :], then[:, :, :, 1 + case.num_keys :])


def separate(kv_cache: KVCache) -> KVCache:
    return KVCache(kv_cache.keys.clone(), kv_cache.values.clone())
