"""Reliability diagrams against counts by hand."""

from typing import Any

import pytest

from eval.calibrate.reliability import reliability, what_if


def record(confidences: list[float | None], revisions: list[Any], score: float = 1.0) -> Any:
    return {
        "error": None, "primary": "answer", "scores": {"answer": score},
        "length": len(confidences), "tokens": list(range(5, 5 + len(confidences))),
        "trace": {"confidences": confidences, "revisions": revisions},
    }  # fmt: skip


# Position 1 was first committed as 9, then as its final 6; position 0 as its final token at once.
REVISED = record([0.95, 0.85, None], [[1, 9, 0, 0.55, 2], [0, 5, 0, 0.65, 1]])


def test_bins_hold_commits_and_their_agreement_with_the_final_tokens() -> None:
    found = reliability([REVISED, record([0.91], [], score=0.0)])
    assert [(one.low, one.num_commits, one.agreement) for one in found.bins] == [
        (0.5, 1, 0.0), (0.6, 1, 1.0), (0.8, 1, 1.0), (0.9, 2, 1.0),
    ]  # fmt: skip
    assert found.num_commits == 5
    assert found.bins[-1].confidence == pytest.approx(0.93)
    # |0.55 - 0| + |0.65 - 1| + |0.85 - 1| + 2 |0.93 - 1|, over five.
    assert found.calibration_error == pytest.approx((0.55 + 0.35 + 0.15 + 0.14) / 5)


def test_tokens_of_wrong_answers_can_count_as_wrong() -> None:
    found = reliability([record([1.0, 0.98], [], score=0.0)], of_right_answers=True)
    assert found.bins[-1].agreement == 0.0
    assert found.calibration_error == pytest.approx(0.99)


def test_a_threshold_is_asked_in_the_same_states() -> None:
    low, high, none = what_if([REVISED], [0.6, 0.9, 0.99])
    assert (low.share, low.agreement) == (0.75, 1.0)
    assert (high.share, high.agreement) == (0.25, 1.0)
    assert (none.share, none.agreement) == (0.0, None)
    assert what_if([REVISED], [0.0])[0].agreement == 0.75


def test_records_without_traces_tell_nothing() -> None:
    with pytest.raises(ValueError, match="with traces"):
        reliability([{**REVISED, "trace": None}])
    with pytest.raises(ValueError, match="num_bins must be at least 1"):
        reliability([REVISED], num_bins=0)
