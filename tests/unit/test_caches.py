import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from spied import FAMILIES, tiny

from dllm_decode import (
    CachePolicy,
    Canvas,
    DelayedCache,
    DualCache,
    FreeCache,
    NoCache,
    PipelineCache,
    PrefixCache,
    SelfVerify,
    SettledCache,
    SubBlockCache,
    decode,
)
from dllm_decode.caches import CacheQuery, Columns
from dllm_decode.caches.base import History
from dllm_decode.caches.ledger import CacheLedger
from dllm_decode.models.base import KVCache
from samplers import FixedSchedule, Prophet, Wino
from samplers.expression import parse_expression

MASK = 99
POLICIES: dict[str, Callable[..., CachePolicy]] = {
    policy.__name__: policy
    for policy in (
        NoCache,
        PrefixCache,
        DualCache,
        FreeCache,
        DelayedCache,
        SettledCache,
        PipelineCache,
        SubBlockCache,
    )
}


def forward(
    step: int,
    *,
    needed: slice = slice(8, 12),
    end: int = 20,
    shift: int = 0,
    previous: tuple[int | None, ...] = (4, 4),
    pending: torch.Tensor | None = None,
    tokens: torch.Tensor | None = None,
) -> CacheQuery:
    """Two rows, a prompt of 4 columns and an answer of 16; the third block of 4 is open."""
    canvas = Canvas.blank([[1, 2, 3, 4]] * 2, 16, mask_id=MASK, eos_ids=(0,))
    if tokens is not None:
        canvas = canvas.write(0, torch.ones_like(canvas.fixed), tokens)
    return CacheQuery(
        canvas=canvas,
        needed=needed,
        end=end,
        shift=shift,
        step=step,
        previous=previous,
        history=history(torch.ones(2, 20) if pending is None else ~pending),
    )


def history(clean: torch.Tensor, since: torch.Tensor | None = None, forwards: int = 9) -> History:
    """What two rows know of columns that were clean in so many forwards."""
    clean = clean.long()
    return History(clean, clean if since is None else since, torch.full((2,), forwards))


@pytest.mark.parametrize(
    ("cache", "steps"),
    [
        (NoCache(), [(0, 20), (0, 20), (0, 20)]),
        (PrefixCache(), [(0, 20), (8, 20), (8, 20)]),
        (PrefixCache(refresh_every=2), [(0, 20), (8, 20), (0, 20)]),
        (DualCache(), [(0, 20), (8, 12), (8, 12)]),
        (DualCache(refresh_every=2), [(0, 20), (8, 12), (0, 20)]),
        (DualCache(before=2, after=3), [(0, 20), (6, 15), (6, 15)]),
        (DualCache(before=16, after=16), [(0, 20), (0, 20), (0, 20)]),
    ],
    ids=repr,
)
def test_a_policy_by_block_computes_these_columns(
    cache: CachePolicy, steps: list[tuple[int, int]]
) -> None:
    assert [cache.recompute(forward(step)) for step in range(3)] == [slice(*s) for s in steps]


def test_free_cache_computes_a_finished_block_once_more_unless_official() -> None:
    clean, official = FreeCache(), FreeCache("official")
    for cache in (clean, official):
        assert cache.recompute(forward(0, previous=(None, None))) == slice(0, 20)
        assert cache.recompute(forward(1, previous=(8, 8))) == slice(8, 20)
    assert clean.recompute(forward(0, previous=(4, 4))) == slice(4, 20)
    assert official.recompute(forward(0, previous=(4, 4))) == slice(8, 20)


def test_free_cache_lets_a_row_that_joins_late_start_from_its_prompt() -> None:
    columns = FreeCache().recompute(forward(0, previous=(4, None)))
    assert isinstance(columns, torch.Tensor)
    assert columns[1].tolist() == list(range(20))
    assert columns[0].tolist() == [4, 4, 4, 4, *range(4, 20)]


def listed(columns: Columns) -> list[list[int]]:
    assert isinstance(columns, torch.Tensor)
    return columns.tolist()  # type: ignore[no-any-return]


def test_delayed_caching_computes_what_is_or_was_masked_and_pads_with_a_row_of_its_own() -> None:
    pending = torch.zeros(2, 20, dtype=torch.bool)
    pending[0, [6, 9, 10]] = True
    pending[1, [15]] = True
    tokens = torch.full((2, 16), 7)
    cache = DelayedCache(refresh_every=4, warm_up=2)
    assert cache.recompute(forward(1, pending=pending)) == slice(0, 20)
    assert cache.recompute(forward(4, pending=pending)) == slice(0, 20)
    columns = cache.recompute(forward(2, pending=pending, tokens=tokens))
    # As many columns as fill the shape, all of the row's own, in order.
    assert listed(columns) == [[6, 9] + [10] * 14, [15] * 16]


def test_delayed_caching_computes_a_column_that_was_re_masked() -> None:
    tokens = torch.full((2, 16), 7)
    tokens[:, 3] = MASK
    columns = DelayedCache().recompute(forward(2, tokens=tokens))
    assert listed(columns) == [[7] * 16, [7] * 16]


def test_delayed_caching_of_a_shifted_model_computes_what_predicts_a_mask() -> None:
    tokens = torch.full((2, 16), 7)
    tokens[0, 3] = MASK
    tokens[1, 15] = MASK
    columns = DelayedCache().recompute(forward(2, shift=1, tokens=tokens))
    assert listed(columns) == [[6] + [7] * 15, [18] + [19] * 15]


def test_a_settled_beginning_is_frozen_row_by_row() -> None:
    clean = torch.tensor([[3] * 9 + [2, 1, 0] + [5] * 8, [2] * 8 + [0] * 12])
    query = replace(forward(3), history=history(clean))
    columns = SettledCache(2).recompute(query)
    assert listed(columns) == [[10] * 3 + list(range(11, 20)), list(range(8, 20))]
    shifted = SettledCache(2).recompute(replace(query, shift=1))
    assert listed(shifted) == [[9] * 3 + list(range(10, 20)), list(range(7, 20))]
    assert SettledCache(4).recompute(query) == slice(0, 20)


def test_a_pipeline_freezes_block_after_block_some_forwards_apart() -> None:
    # Prompt of 4; row 0 has finished two blocks of 4 in the forwards before the second and the
    # fourth, row 1 none.
    since = torch.tensor([[1] * 4 + [2] * 4 + [4] * 4 + [0] * 8, [1] * 4 + [0] * 16])
    tokens = torch.full((2, 16), MASK)
    tokens[0, :8] = 7
    cache = PipelineCache(4, delay=2, refresh_every=0)
    found = {}
    for number in range(9):
        query = forward(3, needed=slice(8, 20), tokens=tokens)
        before = since.where(since <= number, 0)
        columns = cache.recompute(replace(query, history=history(before, before, number)))
        listed = (
            torch.arange(20).expand(2, -1)[:, columns] if isinstance(columns, slice) else columns
        )
        found[number + 1] = [int(row.min()) for row in listed]
    # Row 0: the prompt by forward 2, so block 1 (finished by forward 2) by 4, block 2 by 6.
    assert [found[number][0] for number in range(4, 9)] == [4, 0, 8, 12, 12]
    assert [found[number][1] for number in range(1, 6)] == [0, 0, 4, 4, 4]


def test_a_pipeline_refreshes_by_the_row_s_own_forwards() -> None:
    cache = PipelineCache(4, delay=1, refresh_every=3)
    query = forward(3)
    since = torch.tensor([[1] * 4 + [0] * 16] * 2)
    known = History(since, since, torch.tensor([2, 3]))
    columns = listed(cache.recompute(replace(query, history=known)))
    assert [row[0] for row in columns] == [0, 4]


def test_a_sub_block_is_computed_alone_once_its_first_token_stands() -> None:
    cache = SubBlockCache()
    assert cache.recompute(forward(0, previous=(4, 4))) == slice(4, 20)
    query = forward(1, previous=(8, 8))
    opened = torch.zeros(2, 16, dtype=torch.bool)
    opened[0, 4:6] = opened[1, 6:8] = True
    tokens = torch.full((2, 16), MASK)
    tokens[1, 6] = 7
    canvas = query.canvas.write(0, torch.ones_like(query.canvas.fixed), tokens)
    columns = cache.recompute(replace(query, canvas=canvas.with_opened(opened, None)))
    assert listed(columns) == [list(range(8, 20)), [10] + [11] * 11]


def test_a_column_is_clean_from_the_first_forward_that_computes_its_token() -> None:
    seen: list[torch.Tensor] = []

    @dataclass(frozen=True)
    class Watching(CachePolicy):
        """Computes everything, and notes what it was told."""

        def recompute(self, query: CacheQuery) -> Columns:
            seen.append(query.clean_forwards.clone())
            return slice(0, query.end)

    commits = FixedSchedule(4, "random")
    out = decode(
        tiny("llada"), [[5, 6]], commits, cache=Watching(), gen_length=4, stop_at_eos=False
    )
    assert out.forwards == 4
    for before, after in itertools.pairwise(seen):
        grown = after - before
        assert ((grown == 1) | ((grown == 0) & (before == 0))).all()
    assert [row[0, :2].tolist() for row in seen] == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert sorted(seen[-1][0, 2:].tolist()) == [0, 0, 1, 2]


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: PrefixCache(-1), "refresh_every must be at least 0 forwards, got -1"),
        (lambda: DualCache(-2), "refresh_every must be at least 0 forwards, got -2"),
        (lambda: DualCache(before=-1), "before must be at least 0 columns, got -1"),
        (lambda: DelayedCache(0), "refresh_every must be at least 1 forwards, got 0"),
        (lambda: SettledCache(0), "delay must be at least 1 forwards, got 0"),
        (lambda: PipelineCache(0), "block_length must be at least 1 tokens, got 0"),
        (lambda: PipelineCache(delay=-1), "delay must be at least 0 forwards, got -1"),
        (lambda: DelayedCache(warm_up=0), "warm_up must be at least 1 forwards, got 0"),
    ],
)
def test_settings_out_of_range_are_refused(build: Callable[[], CachePolicy], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build()


@pytest.mark.parametrize(
    "cache",
    [
        NoCache(),
        PrefixCache(3),
        DualCache(2, 4, 5),
        FreeCache("official"),
        DelayedCache(7),
        SettledCache(3),
        PipelineCache(8, 0, 0),
        SubBlockCache(),
    ],
)
def test_the_repr_is_the_configuration(cache: CachePolicy) -> None:
    assert parse_expression(repr(cache), POLICIES) == cache


def test_the_first_slots_of_a_memory_are_the_memory_itself() -> None:
    kv_cache = KVCache(torch.zeros(2, 3, 1, 8, 4), torch.zeros(2, 3, 1, 8, 4))
    part = kv_cache.first(5)
    part.keys[:, 0, :, 2] = 1.0
    assert (kv_cache.keys[:, 0, :, 2] == 1.0).all()
    assert kv_cache.keys.sum() == part.keys.sum()
    assert part.keys.shape[3] == part.values.shape[3] == 5


def test_the_store_finds_rows_as_cheaply_as_it_can() -> None:
    canvas = Canvas.blank([[1], [2], [3]], 4, mask_id=MASK, eos_ids=(0,))
    store = CacheLedger(None, canvas, with_ledger=False)
    assert store.rows(canvas, None) is None
    assert store.rows(canvas.take(torch.tensor([1, 2])), None) == slice(1, 3)
    apart = canvas.take(torch.tensor([0, 2]))
    assert store.rows(apart, None) is apart.rows


@dataclass(frozen=True)
class Forgetful(CachePolicy):
    """Computes what an inner policy does, and promises nothing."""

    inner: CachePolicy

    def recompute(self, query: CacheQuery) -> Columns:
        return self.inner.recompute(query)


@dataclass(frozen=True)
class Skipping(CachePolicy):
    """Computes a single column after the first forward of a block."""

    def recompute(self, query: CacheQuery) -> Columns:
        first = query.needed.start
        return slice(0, query.end) if query.step == 0 else slice(first, first + 1)


@dataclass(frozen=True)
class Boasting(CachePolicy):
    """Says that it needs no cache, and leaves out columns."""

    @property
    def needs_kv_cache(self) -> bool:
        return False

    def recompute(self, query: CacheQuery) -> Columns:
        return query.needed


@dataclass(frozen=True)
class Peeking(CachePolicy):
    """Reads what is pending without saying so."""

    @property
    def reads_history(self) -> bool:
        return False

    def recompute(self, query: CacheQuery) -> Columns:
        return slice(int(query.pending.long().argmax()), query.end)


@pytest.mark.parametrize(
    ("cache", "sentence"),
    [
        (Skipping(), r"Skipping\(\) must compute every column that predicts .* in step 2"),
        (Boasting(), r"needs_kv_cache must be True in Boasting\(\)"),
        (Peeking(), "reads_history must be True"),
    ],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_policy_that_breaks_its_contract_is_named(
    cache: CachePolicy, sentence: str, family: str
) -> None:
    with pytest.raises(RuntimeError, match=sentence):
        decode(
            tiny(family), [[5, 6, 7], [8]], FixedSchedule(4), gen_length=8, block_length=4,
            stop_at_eos=False, cache=cache,
        )  # fmt: skip


@pytest.mark.parametrize("inner", [DualCache(), DelayedCache(), FreeCache("official")], ids=repr)
def test_a_copy_that_forgets_its_properties_is_refused_as_the_original_is(
    inner: CachePolicy,
) -> None:
    model, copy = tiny("llada"), Forgetful(inner)
    options: Any = {"gen_length": 8, "block_length": 4, "stop_at_eos": False}
    plain = decode(model, [[5, 6, 7], [8]], FixedSchedule(4), cache=inner, **options)
    copied = decode(model, [[5, 6, 7], [8]], FixedSchedule(4), cache=copy, **options)
    assert torch.equal(plain.tokens, copied.tokens)
    for sampler in (Prophet(FixedSchedule(4)), Prophet(FixedSchedule(4), gap="all"), Wino()):
        with pytest.raises(ValueError, match=r"got Forgetful\("):
            decode(model, [[5, 6]], sampler, cache=copy, **options)
    with pytest.raises(ValueError, match=r"got Forgetful\("):
        decode(model, [[5, 6]], FixedSchedule(4), cache=copy, verifier=SelfVerify(), **options)
