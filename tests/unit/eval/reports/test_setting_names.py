from dataclasses import replace

import pytest
from eval_runs import SETTINGS

from eval.reports.setting_names import names_of
from samplers import ConfidenceThreshold, CreditDecoding, LocalLeap


def shown(*samplers: str) -> list[str]:
    return names_of(
        [{"settings": replace(SETTINGS, sampler=name).written(), "seeds": [0]} for name in samplers]
    )


@pytest.mark.parametrize(
    ("samplers", "names"),
    [
        # Default arguments are left out, also within plug-ins, unless rows differ in them.
        ([repr(LocalLeap())], ["LocalLeap()"]),
        ([repr(LocalLeap()), repr(LocalLeap(radius=6))],
         ["LocalLeap(radius=4)", "LocalLeap(radius=6)"]),
        ([repr(ConfidenceThreshold(0.9)), repr(ConfidenceThreshold(0.8))],
         ["ConfidenceThreshold(0.9)", "ConfidenceThreshold(0.8)"]),
        ([repr(CreditDecoding(ConfidenceThreshold(0.7)))],
         ["CreditDecoding(ConfidenceThreshold(0.7))"]),
        # Plug-ins of the user's own are shown whole.
        (["Mine(a=1, b='x')"], ["Mine(a=1, b='x')"]),
        (["my_module:Mine(a=1)"], ["my_module:Mine(a=1)"]),
    ],
)  # fmt: skip
def test_a_name_says_what_tells_rows_apart(samplers: list[str], names: list[str]) -> None:
    assert shown(*samplers) == names


def test_the_cache_that_changes_nothing_is_not_named() -> None:
    rows = [
        {"settings": replace(SETTINGS, cache=cache).written(), "seeds": [0]}
        for cache in ("NoCache()", "DualCache(refresh_every=0)")
    ]
    assert names_of(rows) == ["FixedSchedule(4)", "FixedSchedule(4) + DualCache()"]
    assert names_of(rows, short=False)[1] == "FixedSchedule(4) + DualCache(refresh_every=0)"
