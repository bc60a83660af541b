"""A forward that is filled up gives what it gives alone, and leaves the same in its memory."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from replayed import roomy
from spied import FAMILIES, load_tiny, tiny
from torch import Tensor

from dllm_decode import ForwardInputs, KVCache
from dllm_decode.models.graphs.buffers import KVBufferPool
from dllm_decode.models.graphs.padding import num_columns, num_rows, pad_to_bucket

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


def test_rows_are_filled_up_to_about_one_of_eight_numbers() -> None:
    assert sorted({num_rows(n, 32) for n in range(1, 33)}) == [1, 2, 4, 8, 12, 16, 20, 24, 28, 32]
    assert sorted({num_rows(n, 9) for n in range(1, 10)}) == [1, 2, 4, 6, 8, 9]
    for limit in range(1, 300):
        filled = [num_rows(wished, limit) for wished in range(1, limit + 1)]
        assert all(wished <= more <= limit for wished, more in enumerate(filled, 1))
        # What few rows are filled up to lies below an eighth.
        assert len([more for more in set(filled) if more >= limit / 8]) <= 8
        assert len(set(filled)) <= 8 + max(0, limit.bit_length() - 3)


class Case:
    """A random forward, what it gives, and a memory that has room for more."""

    def __init__(
        self, model: Any, seed: int, *, size: tuple[int, int, int, int], kinds: tuple[str, ...]
    ) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.model, (self.limit, B, Q, self.num_keys) = model, size
        slots, rows, attend = kinds
        columns = self._columns(slots, (B, Q))
        kv_cache = None if slots == "none" else self._memory()
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
            attend=self._attend(attend, (B, Q, Q if kv_cache is None else self.num_keys)),
            kv_cache=kv_cache,
            slots={"none": None, "slice": slice(3, 3 + Q)}.get(slots, columns),
            rows={"all": None, "slice": slice(self.limit - B, self.limit)}.get(rows, self.index),
        )

    def _columns(self, slots: str, size: tuple[int, int]) -> Tensor:
        B, Q = size
        if slots in ("none", "slice"):
            return torch.arange(3, 3 + Q).repeat(B, 1) % self.num_keys
        places = torch.rand(B, self.num_keys, generator=self.random).argsort(1)[:, :Q].sort(1)[0]
        if slots == "repeated":
            places[:, -3:] = places[:, -4:-3]
        return places

    def _memory(self) -> KVCache:
        kv_cache = roomy(self.model, self.limit, self.num_keys + 70, KVBufferPool()).first(
            self.num_keys
        )
        # What is hidden is anything but zero.
        assert kv_cache.whole is not None
        for part in kv_cache.whole.buffers:
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
    for slots in ("none", "slice", "tensor", "repeated")
    for rows in (("all",) if slots == "none" else ("all", "slice", "tensor"))
    for attend in ("none", "one row", "per query")
]
# Rows of the memory, rows, columns, keys.
SIZES = {
    "few rows, odd numbers": (24, 5, 11, 50),
    "all rows but one, which fill the memory": (10, 9, 13, 50),
    "all rows": (8, 8, 16, 50),
    "more than enough columns": (16, 3, 67, 90),
    "nothing but a mask is added": (12, 8, 16, 63),
}


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


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kinds", [KINDS[2], KINDS[-1]], ids="-".join)
def test_in_float32_the_same_up_to_rounding(family: str, kinds: tuple[str, ...]) -> None:
    model = load_tiny(family, dtype=torch.float32)
    check(Case(model, 8, size=(10, 9, 13, 50), kinds=kinds), 1e-3)


def check(case: Case, tolerance: float) -> None:
    inputs, kv_cache = case.inputs, case.inputs.kv_cache
    alone = inputs if kv_cache is None else replace(inputs, kv_cache=separate(kv_cache))
    expected = case.model.predict(alone)
    before = None if kv_cache is None else separate(kv_cache.whole)
    filled = pad_to_bucket(inputs)
    got = filled.cut(case.model.predict(filled.inputs))
    assert got.shape == expected.shape
    torch.testing.assert_close(got, expected, rtol=0, atol=tolerance)
    if kv_cache is None:
        return
    written = torch.zeros(case.limit, case.num_keys, dtype=torch.bool)
    there = torch.arange(case.num_keys)[inputs.slots] if isinstance(inputs.slots, slice) else None
    slots = inputs.slots if there is None else there.expand_as(inputs.tokens)
    written[case.index[:, None], slots] = True
    for now, then, wanted in zip(
        kv_cache.whole.buffers, before.buffers, alone.kv_cache.buffers, strict=True
    ):
        mine = now[:, :, :, 1 : 1 + case.num_keys]
        torch.testing.assert_close(mine, wanted, rtol=0, atol=tolerance)
        # Exactly: nothing else was written, but to the spare slot.
        old = then[:, :, :, 1 : 1 + case.num_keys]
        assert torch.equal(mine.movedim(3, 2)[:, ~written], old.movedim(3, 2)[:, ~written])
        assert torch.equal(now[:, :, :, 1 + case.num_keys :], then[:, :, :, 1 + case.num_keys :])


def separate(kv_cache: KVCache | None) -> KVCache:
    assert kv_cache is not None
    return KVCache(kv_cache.keys.clone(), kv_cache.values.clone())


def test_the_sizes_are_those_promised() -> None:
    case = Case(tiny("llada"), 0, size=(32, 6, 67, 90), kinds=("tensor", "tensor", "per query"))
    inputs = pad_to_bucket(case.inputs).inputs
    assert inputs.tokens.shape == inputs.positions.shape == inputs.slots.shape == (8, 80)
    assert inputs.wanted.shape == (8, 8)
    assert inputs.attend.shape == (8, 80, 128)
    assert inputs.kv_cache.keys.shape[3] == 128
    assert inputs.rows.tolist() == [*case.index.tolist(), *[case.index[-1].item()] * 2]


@pytest.mark.parametrize("rows", ["slice", "tensor"])
def test_as_many_rows_as_the_memory_has_are_not_gathered(rows: str) -> None:
    case = Case(tiny("llada"), 0, size=(32, 29, 8, 20), kinds=("slice", rows, "none"))
    filled = pad_to_bucket(case.inputs)
    assert filled.inputs.rows is None
    assert torch.equal(filled.inputs.tokens[case.index], case.inputs.tokens)


def test_without_a_memory_nothing_is_added_to_what_is_of_a_size_already() -> None:
    case = Case(tiny("llada"), 0, size=(4, 4, 16, 40), kinds=("none", "all", "none"))
    inputs = replace(case.inputs, wanted=case.inputs.tokens % 16)
    filled = pad_to_bucket(inputs)
    for name, part in vars(filled.inputs).items():
        assert part is vars(inputs)[name]
    logits = torch.zeros(4, 16, V)
    assert filled.cut(logits).data_ptr() == logits.data_ptr()


def test_a_memory_without_a_spare_slot_is_left_as_it_is() -> None:
    case = Case(tiny("llada"), 0, size=(9, 3, 11, 40), kinds=("slice", "slice", "one row"))
    inputs = replace(case.inputs, kv_cache=separate(case.inputs.kv_cache))
    filled = pad_to_bucket(inputs).inputs
    assert filled.slots.tolist() == [list(range(3, 14))] * 3
    for name in ("tokens", "positions", "wanted", "attend", "kv_cache", "rows"):
        assert vars(filled)[name] is vars(inputs)[name]


@pytest.mark.parametrize("kinds", [KINDS[1], KINDS[-1], KINDS[6]], ids="-".join)
def test_what_is_the_same_tensor_again_is_not_laid_out_again(kinds: tuple[str, ...]) -> None:
    case = Case(tiny("llada"), 1, size=(9, 7, 11, 50), kinds=kinds)
    one = pad_to_bucket(case.inputs)
    again = replace(case.inputs, tokens=case.inputs.tokens + 1)
    two = pad_to_bucket(again, one.without_memory).inputs
    for name in ("positions", "wanted", "attend", "slots", "rows"):
        assert vars(two)[name] is vars(one.inputs)[name]
    assert two.tokens.sum() == one.inputs.tokens.sum() + again.tokens.numel()


@pytest.mark.parametrize(
    "change", ["rows", "slots", "attend", "wanted", "fewer rows", "fewer keys"]
)
@pytest.mark.parametrize("num_rows", [7, 9])
def test_what_has_changed_is_laid_out_anew(change: str, num_rows: int) -> None:
    """Where rows lie decides about all tensors: nine of ten are laid out like the memory."""
    case = Case(tiny("llada"), 1, size=(10, num_rows, 11, 50), kinds=("slice", "tensor", "none"))
    first = case.inputs
    changed = {
        "rows": replace(first, rows=case.index.flip(0)),
        "slots": replace(first, slots=slice(4, 15)),
        "attend": replace(first, attend=torch.ones(num_rows, 1, 50, dtype=torch.bool)),
        "wanted": replace(first, wanted=torch.zeros(num_rows, 6, dtype=torch.long)),
        "fewer rows": replace(
            first,
            **{name: vars(first)[name][1:] for name in ("tokens", "positions", "wanted", "rows")},
        ),
        "fewer keys": replace(first, kv_cache=first.kv_cache.first(40)),
    }[change]
    anew = pad_to_bucket(changed).inputs
    built = pad_to_bucket(changed, pad_to_bucket(first)).inputs
    for name in ("tokens", "positions", "wanted", "attend", "slots", "rows"):
        one, other = vars(anew)[name], vars(built)[name]
        assert torch.equal(one, other) if isinstance(one, Tensor) else one is other


def test_a_filled_up_forward_does_not_keep_its_memory() -> None:
    case = Case(tiny("llada"), 1, size=(9, 7, 11, 50), kinds=KINDS[-1])
    kept = pad_to_bucket(case.inputs).without_memory
    assert kept.given.kv_cache is None
    assert kept.inputs.kv_cache is None
