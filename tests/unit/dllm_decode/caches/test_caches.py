import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from plugins_under_test import plugin
from tiny_models import tiny

from dllm_decode import (
    CachePolicy,
    DecodeConfig,
    DelayedCache,
    DualCache,
    FreeCache,
    NoCache,
    PipelineCache,
    PrefixCache,
    SelfVerify,
    SettledCache,
    SubBlockCache,
    SuffixWindow,
    decode,
)
from dllm_decode.caches import CacheQuery, History
from dllm_decode.core.canvas import Canvas
from dllm_decode.core.columns import Columns, columns
from dllm_decode.core.rows import Numbers, Opening, Request, Row
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


def query(step: int, **more: Any) -> CacheQuery:
    """A prompt of 4 columns and an answer of 16; the third block of 4, columns 8 to 12, is open."""
    block, end, shift = Opening.of_block(8, 12), more.pop("end", 20), more.pop("shift", 0)
    row = Row(
        Request(0, [1, 2, 3, 4], DecodeConfig(gen_length=16)), 4, 20, unsettled=8, opening=block,
        turn_forwards=step, last_needed=4, nfe=8, numbers=Numbers(cache=more.pop("numbers", ())),
    )  # fmt: skip
    return CacheQuery(row._replace(**more), end, shift)


def blank(tokens: list[list[int]]) -> Canvas:
    """Rows with a prompt of 4 columns and an answer of 16, of which some tokens are given."""
    config = DecodeConfig(gen_length=16)
    rows = [Row.of(Request(0, [1, 2, 3, 4], config, answer), 1, MASK) for answer in tokens]
    return Canvas.blank(rows, width=20, mask_id=MASK, eos_ids=(0,))


def listed(found: Columns) -> list[int]:
    return [column for part in found for column in part]


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
    assert [cache.recompute(query(step)) for step in range(3)] == [columns(s) for s in steps]


def test_free_cache_computes_a_finished_block_once_more_unless_official() -> None:
    clean, official = FreeCache(), FreeCache("official")
    for cache in (clean, official):
        assert cache.recompute(query(0, last_needed=None)) == columns((0, 20))
        assert cache.recompute(query(1, last_needed=8)) == columns((8, 20))
    assert clean.recompute(query(0)) == columns((4, 20))
    assert official.recompute(query(0)) == columns((8, 20))


def told(cache: CachePolicy, canvas: Canvas, known: History, shift: int = 0) -> list[Any]:
    """Returns what the host would tell the policy of each row."""
    numbers = cache.numbers(canvas, known, shift)
    assert numbers is not None
    return [tuple(own) for own in numbers.tolist()]


def history(clean: torch.Tensor, nfe: int = 9) -> History:
    """Returns what rows know of columns that were clean in so many forwards."""
    return History(clean.long(), clean.long(), torch.full((len(clean),), nfe))


def test_delayed_caching_computes_what_is_or_was_masked() -> None:
    clean = torch.ones(2, 20)
    clean[0, [6, 9, 10]] = clean[1, [15]] = 0
    cache = DelayedCache(refresh_every=4, warm_up=2)
    numbers = told(cache, blank([[7] * 16] * 2), history(clean))
    for step in (0, 1, 4):
        assert cache.recompute(query(step, numbers=numbers[0])) == columns((0, 20))
    assert listed(cache.recompute(query(2, numbers=numbers[0]))) == [6, 9, 10]
    assert listed(cache.recompute(query(2, numbers=numbers[1]))) == [15]


def test_delayed_caching_computes_a_column_that_was_re_masked() -> None:
    canvas = blank([[7] * 3 + [MASK] + [7] * 12])
    (numbers,) = told(DelayedCache(), canvas, history(torch.ones(1, 20)))
    assert listed(DelayedCache().recompute(query(2, numbers=numbers))) == [7]


def test_delayed_caching_of_a_shifted_model_computes_what_predicts_a_mask() -> None:
    canvas = blank([[7] * 3 + [MASK] + [7] * 12, [7] * 15 + [MASK]])
    numbers = told(DelayedCache(), canvas, history(torch.ones(2, 20)), shift=1)
    found = [DelayedCache().recompute(query(2, shift=1, numbers=own)) for own in numbers]
    assert [listed(own) for own in found] == [[6, 7], [18, 19]]


def test_a_settled_beginning_is_frozen_row_by_row() -> None:
    clean = torch.tensor([[3] * 9 + [2, 1, 0] + [5] * 8, [2] * 8 + [0] * 12])
    canvas = blank([[7] * 16] * 2)
    for shift in (0, 1):
        numbers = told(SettledCache(2), canvas, history(clean), shift)
        found = [SettledCache(2).recompute(query(3, shift=shift, numbers=own)) for own in numbers]
        assert found == [columns((10 - shift, 20)), columns((8 - shift, 20))]
    numbers = told(SettledCache(4), canvas, history(clean))
    assert SettledCache(4).recompute(query(3, numbers=numbers[0])) == columns((0, 20))


def test_a_pipeline_freezes_block_after_block_some_forwards_apart() -> None:
    # Row 0 has finished two blocks of 4 in the forwards before the second and the fourth, row 1
    # none.
    since = torch.tensor([[1] * 4 + [2] * 4 + [4] * 4 + [0] * 8, [1] * 4 + [0] * 16])
    canvas = blank([[7] * 8 + [MASK] * 8, []])
    cache = PipelineCache(4, delay=2, refresh_every=0)
    found = {}
    for number in range(9):
        before = since.where(since <= number, 0)
        numbers = told(cache, canvas, history(before, number))
        found[number + 1] = [
            cache.recompute(query(3, opening=Opening.of_block(8, 20), nfe=number, numbers=own))[
                0
            ].start
            for own in numbers
        ]
    # Row 0: the prompt by forward 2, so block 1 (finished by forward 2) by 4, block 2 by 6.
    assert [found[number][0] for number in range(4, 9)] == [4, 0, 8, 12, 12]
    assert [found[number][1] for number in range(1, 6)] == [0, 0, 4, 4, 4]


def test_a_pipeline_refreshes_by_the_row_s_own_forwards() -> None:
    cache, since = PipelineCache(4, delay=1, refresh_every=3), torch.tensor([[1] * 4 + [0] * 16])
    for nfe, first in ((2, 0), (3, 4)):
        (numbers,) = told(cache, blank([[]]), history(since, nfe))
        found = cache.recompute(query(3, nfe=nfe, numbers=numbers))
        assert found == columns((first, 20))


def test_a_sub_block_is_computed_alone_once_its_first_token_is_settled() -> None:
    cache = SubBlockCache()
    assert cache.recompute(query(0)) == columns((4, 20))
    inside = {"last_needed": 8, "opening": Opening(10, 12, (8, 12), (8, 12), (8, 12))}
    assert cache.recompute(query(1, unsettled=10, **inside)) == columns((8, 20))
    assert cache.recompute(query(1, unsettled=11, **inside)) == columns((10, 12))


def test_a_window_hides_what_is_far_after_the_block_but_not_the_row_s_last_columns() -> None:
    cache = SuffixWindow(NoCache(), 3, tail=1)
    assert cache.hidden(query(0)) == columns((15, 19))
    assert cache.recompute(query(0)) == columns((0, 15), (19, 20))
    assert cache.hidden(query(0, end=12)) == ()
    whole = SuffixWindow(NoCache(), 8, tail=0)
    assert (whole.hidden(query(0)), whole.recompute(query(0))) == ((), columns((0, 20)))


def test_a_column_is_clean_from_the_first_forward_that_computes_its_token() -> None:
    seen: list[torch.Tensor] = []

    def note(self: Any, canvas: Canvas, history: History, shift: int) -> None:
        seen.append(history.clean_forwards.clone())

    # Computes everything.
    watching = plugin(
        CachePolicy, numbers=note, recompute=lambda self, query: columns((0, query.end))
    )
    commits = FixedSchedule(4, "random")
    out = decode(tiny("llada"), [[5, 6]], commits, cache=watching, gen_length=4, stop_at_eos=False)
    assert out.forwards == len(seen) == 4
    for before, after in itertools.pairwise(seen):
        grown = after - before
        assert ((grown == 1) | ((grown == 0) & (before == 0))).all()
    assert [row[0, :2].tolist() for row in seen] == [[1, 1], [2, 2], [3, 3], [4, 4]]
    assert sorted(seen[-1][0, 2:6].tolist()) == [0, 1, 2, 3]


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


@pytest.mark.parametrize("inner", [DualCache(), DelayedCache(), FreeCache("official")], ids=repr)
def test_a_copy_that_gives_no_facts_is_refused_as_the_original_is(inner: CachePolicy) -> None:
    model = tiny("llada")
    copy = plugin(
        CachePolicy,
        numbers=lambda self, *given: inner.numbers(*given),
        recompute=lambda self, query: inner.recompute(query),
    )
    options: Any = {"gen_length": 8, "block_length": 4, "stop_at_eos": False}
    plain = decode(model, [[5, 6, 7], [8]], FixedSchedule(4), cache=inner, **options)
    copied = decode(model, [[5, 6, 7], [8]], FixedSchedule(4), cache=copy, **options)
    assert torch.equal(plain.tokens, copied.tokens)
    for sampler in (Prophet(FixedSchedule(4)), Prophet(FixedSchedule(4), gap="all"), Wino()):
        with pytest.raises(ValueError, match=r"got Own\("):
            decode(model, [[5, 6]], sampler, cache=copy, **options)
    with pytest.raises(ValueError, match=r"got Own\("):
        decode(model, [[5, 6]], FixedSchedule(4), cache=copy, verifier=SelfVerify(), **options)
