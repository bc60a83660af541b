from dataclasses import replace

from eval_runs import SETTINGS

from eval.reports.names import names_of
from samplers import ConfidenceThreshold, CreditDecoding, LocalLeap


def shown(*samplers: str, **own: str) -> list[str]:
    rows = [
        {"settings": replace(SETTINGS, sampler=one, **own).written(), "seeds": [0]}  # type: ignore[arg-type]  # all are texts
        for one in samplers
    ]
    return names_of(rows)


def test_arguments_with_their_default_are_left_out() -> None:
    assert shown(repr(LocalLeap()), repr(LocalLeap(radius=6))) == [
        "LocalLeap(radius=4)", "LocalLeap(radius=6)"
    ]  # fmt: skip
    assert shown(repr(LocalLeap())) == ["LocalLeap()"]


def test_an_argument_that_rows_differ_in_stays_although_it_is_the_default() -> None:
    both = repr(ConfidenceThreshold(0.9)), repr(ConfidenceThreshold(0.8))
    assert shown(*both) == ["ConfidenceThreshold(0.9)", "ConfidenceThreshold(0.8)"]


def test_names_of_plug_ins_within_plug_ins_are_shortened_too() -> None:
    inner = CreditDecoding(ConfidenceThreshold(0.7))
    assert shown(repr(inner)) == ["CreditDecoding(ConfidenceThreshold(0.7))"]


def test_plug_ins_of_the_users_own_are_shown_whole() -> None:
    assert shown("Mine(a=1, b='x')") == ["Mine(a=1, b='x')"]
    assert shown("my_module:Mine(a=1)") == ["my_module:Mine(a=1)"]


def test_the_cache_that_changes_nothing_is_not_named() -> None:
    rows = [
        {"settings": replace(SETTINGS, cache=cache).written(), "seeds": [0]}
        for cache in ("NoCache()", "DualCache(refresh_every=0)")
    ]
    assert names_of(rows) == ["FixedSchedule(4)", "FixedSchedule(4) + DualCache()"]
    assert names_of(rows, short=False)[1] == "FixedSchedule(4) + DualCache(refresh_every=0)"
