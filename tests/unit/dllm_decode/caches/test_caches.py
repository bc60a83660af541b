import itertools
from typing import Any

import pytest
import torch
from plugins_under_test import plugin
from tiny_models import tiny

from dllm_decode import (
    CachePolicy,
    CutAtEos,
    DecodeConfig,
    DualCache,
    NoCache,
    PrefixCache,
    SettledCache,
    SubBlockCache,
    SuffixWindow,
    decode,
)
from dllm_decode.caches import CacheQuery, History
from dllm_decode.core.canvas import Canvas
from dllm_decode.core.columns import columns
from dllm_decode.core.requests import Request
from dllm_decode.core.rows import Opening, PluginNumbers, Row
from dllm_decode.testing import row_of
from samplers import FixedSchedule

MASK = 99


def query(step: int, **more: Any) -> CacheQuery:
    """Returns a query of 4 prompt and 16 answer columns; the block of columns 8 to 12 is open."""
    block, end, shift = Opening.of_block(8, 12), more.pop("end", 20), more.pop("shift", 0)
    numbers = PluginNumbers(cache=more.pop("numbers", ()))
    row = row_of(
        4,
        16,
        first_unsettled=8,
        opening=block,
        period_forwards=step,
        previous_first_needed=4,
        nfe=8,
        numbers=numbers,
    )
    return CacheQuery(row._replace(**more), end, shift)


@pytest.mark.parametrize(
    ("cache", "steps"),
    [
        (NoCache(), [(0, 20), (0, 20), (0, 20)]),
        (PrefixCache(), [(0, 20), (8, 20), (8, 20)]),
        (PrefixCache(refresh_every=2), [(0, 20), (8, 20), (0, 20)]),
        (DualCache(), [(0, 20), (8, 12), (8, 12)]),
        (DualCache(before=2, after=3), [(0, 20), (6, 15), (6, 15)]),
        (DualCache(before=16, after=16), [(0, 20), (0, 20), (0, 20)]),
    ],
    ids=repr,
)
def test_a_policy_by_block_computes_these_columns(
    cache: CachePolicy, steps: list[tuple[int, int]]
) -> None:
    assert [cache.columns_to_compute(query(n)) for n in range(3)] == [columns(s) for s in steps]


def test_a_settled_beginning_is_frozen_row_by_row() -> None:
    clean = torch.tensor([[3] * 9 + [2, 1, 0] + [5] * 8, [2] * 8 + [0] * 12])
    rows = [Row.of(Request(0, [1, 2, 3, 4], DecodeConfig(gen_length=16), [7] * 16), 1, MASK)] * 2
    canvas = Canvas.of(rows, width=20, mask_id=MASK, eos_ids=(0,))
    for delay, shift, firsts in ((2, 0, [10, 8]), (2, 1, [9, 7]), (4, 0, [0, 0])):
        cache = SettledCache(delay)
        numbers = cache.numbers(canvas, History(clean, clean, torch.tensor([9, 9])), shift)
        queries = [query(3, shift=shift, numbers=tuple(values)) for values in numbers.tolist()]
        expected = [columns((first, 20)) for first in firsts]
        assert list(map(cache.columns_to_compute, queries)) == expected
    assert PrefixCache().numbers(canvas, History(clean, clean, clean[:, 0]), 0) is None


def test_a_sub_block_is_computed_alone_once_its_first_token_is_settled() -> None:
    cache = SubBlockCache()
    assert cache.columns_to_compute(query(0)) == columns((4, 20))
    inside = {"previous_first_needed": 8, "opening": Opening(10, 12, (8, 12), (8, 12), (8, 12))}
    assert cache.columns_to_compute(query(1, first_unsettled=10, **inside)) == columns((8, 20))
    assert cache.columns_to_compute(query(1, first_unsettled=11, **inside)) == columns((10, 12))


def test_a_window_hides_what_is_far_after_the_block_but_not_the_row_s_last_columns() -> None:
    cache = SuffixWindow(NoCache(), 3, tail=1)
    assert cache.hidden(query(0)) == columns((15, 19))
    assert cache.columns_to_compute(query(0)) == columns((0, 15), (19, 20))
    assert cache.hidden(query(0, end=12)) == ()
    wide = SuffixWindow(NoCache(), 8, tail=0)
    assert (wide.hidden(query(0)), wide.columns_to_compute(query(0))) == ((), columns((0, 20)))


def test_a_column_is_clean_from_the_first_forward_that_computes_its_token() -> None:
    seen: list[torch.Tensor] = []

    def note(self: Any, canvas: Canvas, history: History, shift: int) -> None:
        seen.append(history.clean_forwards.clone())

    # Computes everything.
    watching = plugin(
        CachePolicy, numbers=note, columns_to_compute=lambda self, query: columns((0, query.end))
    )
    commits = FixedSchedule(4, "random")
    out = decode(tiny("llada"), [[5, 6]], commits, cache=watching, gen_length=4, stop_at_eos=False)
    assert out.forwards == len(seen) == 4
    for before, after in itertools.pairwise(seen):
        grown = after - before
        assert ((grown == 1) | ((grown == 0) & (before == 0))).all()
    assert [row[0, :2].tolist() for row in seen] == [[1, 1], [2, 2], [3, 3], [4, 4]]
    assert sorted(seen[-1][0, 2:6].tolist()) == [0, 1, 2, 3]


def test_columns_after_an_eos_are_left_out_once_nothing_after_it_is_open() -> None:
    policy = CutAtEos(NoCache())
    assert policy.columns_to_compute(query(0)) == columns((0, 20))
    assert policy.hidden(query(0, numbers=(15,))) == columns((15, 20))
    assert policy.columns_to_compute(query(0, numbers=(15,))) == columns((0, 15))
    # The open block ends at 12, and stays whole.
    assert policy.columns_to_compute(query(0, numbers=(9,))) == columns((0, 12))


def test_the_end_is_after_the_first_eos_and_after_the_last_unsettled_column() -> None:
    templates = [[7, MASK, 7, 7], [7, 7, 7, 7], [MASK, MASK, MASK, MASK]]
    config = DecodeConfig(gen_length=4)
    rows = [Row.of(Request(0, [1, 2], config, template), 1, MASK) for template in templates]
    canvas = Canvas.of(rows, width=6, mask_id=MASK, eos_ids=(7,))
    ends = CutAtEos(NoCache()).numbers(canvas, History.of(canvas), 0)
    assert ends.tolist() == [[4], [3], [7]]
