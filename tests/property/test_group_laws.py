"""Several groups of rows in one call are what each group is in a call of its own."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
import torch
from tiny_models import EVERY_FAMILY, LAW_OPTIONS, load_tiny, shape_of
from torch import Tensor

from dllm_decode.models import ForwardInputs, KVCache, MaskedTransformer

NUM_SLOTS = 48
NUM_CALLS = 12
# Beyond what the tiny checkpoint whose queries are scaled was trained for.
LAST_POSITION = 3000
TOLERANCES = {torch.float32: 2e-4, torch.float64: 1e-10}


class Groups:
    """Draws groups of random rows, widths, masks, slots and wanted columns."""

    def __init__(self, model: MaskedTransformer, seed: int) -> None:
        self.model = model
        self.random = Random(seed)
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self, num_groups: int) -> tuple[list[ForwardInputs], KVCache | None]:
        """Returns the groups of a call and the whole of their cache, which is full of noise."""
        sizes = [(self.random.randint(1, 3), self.random.randint(1, 40)) for _ in range(num_groups)]
        if self.random.random() < 0.3:
            return [self.group(*size) for size in sizes], None
        num_rows = sum(size[0] for size in sizes) + 1
        kv_cache = self.model.new_kv_cache(num_rows, NUM_SLOTS)
        for buffer in kv_cache.buffers:
            buffer.copy_(torch.randn(buffer.shape, generator=self.generator))
        rows = self.rows(num_rows)
        parts = rows.split([*(size[0] for size in sizes), 1])
        drawn = zip(sizes, parts, strict=False)
        return [self.cached_group(size, part, kv_cache) for size, part in drawn], kv_cache

    def group(self, num_rows: int, width: int) -> ForwardInputs:
        num_wanted = self.random.randint(1, width)
        return ForwardInputs(
            tokens=self.below(self.model.vocab_size, num_rows, width),
            positions=self.below(self.random.choice([64, LAST_POSITION]), num_rows, width),
            wanted=self.below(width, num_rows, num_wanted),
            attend=self.attend(num_rows, width, width),
        )

    def cached_group(self, size: tuple[int, int], rows: Tensor, kv_cache: KVCache) -> ForwardInputs:
        (num_rows, width), random = size, self.random
        num_keys = random.randint(width, NUM_SLOTS)
        start = random.randint(0, num_keys - width)
        shuffled = [torch.randperm(num_keys, generator=self.generator) for _ in range(num_rows)]
        first, end = int(rows[0]), int(rows[0]) + num_rows
        is_run = rows.tolist() == list(range(first, end))
        return replace(
            self.group(num_rows, width),
            attend=self.attend(num_rows, width, num_keys),
            kv_cache=kv_cache.first(num_keys),
            slots=random.choice([slice(start, start + width), torch.stack(shuffled)[:, :width]]),
            rows=slice(first, end) if is_run and random.random() < 0.7 else rows,
        )

    def rows(self, num_rows: int) -> Tensor:
        in_order = self.random.random() < 0.3
        return (
            torch.arange(num_rows)
            if in_order
            else torch.randperm(num_rows, generator=self.generator)
        )

    def attend(self, num_rows: int, width: int, num_keys: int) -> Tensor | None:
        height = self.random.choice([None, 1, width])
        if height is None:
            return None
        attend = torch.rand(num_rows, height, num_keys, generator=self.generator) < 0.7
        attend[..., 0] = True
        return attend

    def below(self, limit: int, num_rows: int, width: int) -> Tensor:
        return torch.randint(limit, (num_rows, width), generator=self.generator)


def one_by_one(
    model: MaskedTransformer, groups: list[ForwardInputs], kv_cache: KVCache | None
) -> tuple[list[Tensor], list[Tensor]]:
    """Returns the logits of each group alone, and what is left in a copy of the cache."""
    if kv_cache is None:
        return [model.predict(group) for group in groups], []
    copied = model.new_kv_cache(kv_cache.keys.shape[1], NUM_SLOTS)
    for there, here in zip(copied.buffers, kv_cache.buffers, strict=True):
        there.copy_(here)
    logits = []
    for group in groups:
        assert group.kv_cache is not None
        view = copied.first(group.kv_cache.num_slots)
        logits.append(model.predict(replace(group, kv_cache=view)))
    return logits, list(copied.buffers)


def events_of(groups: list[ForwardInputs], kv_cache: KVCache | None) -> set[str]:
    tensors = [group.rows.tolist() for group in groups if isinstance(group.rows, Tensor)]
    order = [row for rows in tensors for row in rows]
    happened = {
        "several groups": len(groups) > 1,
        "one group": len(groups) == 1,
        "no cache": kv_cache is None,
        "different widths": len({group.tokens.shape[1] for group in groups}) > 1,
        "different keys": len({g.kv_cache.num_slots for g in groups if g.kv_cache}) > 1,
        "a group of one row": len(groups) > 1 and any(len(g.tokens) == 1 for g in groups),
        "mixed order": order != sorted(order),
        "both kinds of slots": len({type(group.slots) for group in groups}) > 1,
        "some without a mask": len({group.attend is None for group in groups}) > 1,
        "a slice of rows": any(isinstance(group.rows, slice) for group in groups),
    }
    return {name for name, is_true in happened.items() if is_true}


@pytest.mark.exhaustive(10)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_groups_in_one_call_are_groups_one_by_one(family: str, dtype: torch.dtype) -> None:
    model = load_tiny(family, dtype=dtype, **LAW_OPTIONS[family])
    drawn, events = Groups(model, seed=EVERY_FAMILY.index(family)), Counter[str]()
    for call in range(NUM_CALLS):
        groups, kv_cache = drawn.draw(num_groups=1 + call % 4)
        expected, left = one_by_one(model, groups, kv_cache)
        found = model.predict_groups(groups)
        assert [part.shape[:2] for part in found] == [group.wanted.shape for group in groups]
        buffers = [] if kv_cache is None else list(kv_cache.buffers)
        for got, wanted in zip([*found, *buffers], [*expected, *left], strict=True):
            assert (got - wanted).abs().max() < TOLERANCES[dtype]
        events.update(events_of(groups, kv_cache))
    assert len(events) == 10, events


def test_the_law_covers_every_kind_of_layer() -> None:
    shapes = [shape_of(family) for family in EVERY_FAMILY]
    positions = torch.tensor([[LAST_POSITION - 1]])
    scales = [shape.rope.query_scale(positions, torch.float64) for shape in shapes]
    assert any(scale is not None and scale.item() != 1.0 for scale in scales)
    assert any(shape.moe is not None for shape in shapes)
    assert any(shape.rope.dim < shape.head_dim for shape in shapes)
    assert any(shape.qk_norm for shape in shapes)
    assert any(shape.num_kv_heads < shape.num_heads for shape in shapes)
