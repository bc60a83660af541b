"""A threshold beside a schedule."""

import torch
from plugins_under_test import view_with

from samplers import QuotaThreshold, View


def view_of(confidences: list[float], *, committed: int = 0) -> View:
    """Shows positions of which each proposes token 0 with some probability, of two tokens."""
    shares = torch.tensor([confidences], dtype=torch.float64)
    masked = torch.arange(shares.shape[1])[None] >= committed
    return view_with(torch.stack([shares, 1.0 - shares], -1).log(), masked=masked)


def commits(rule: QuotaThreshold, views: list[View]) -> list[list[int]]:
    state, found = rule.init(views[0]), []
    for view in views:
        decision, state = rule.step(view, state)
        found.append(decision.commit[0].nonzero().flatten().tolist())
    return found


def test_at_least_the_quota_is_committed() -> None:
    rule = QuotaThreshold(0.8, 2)
    # Two are due of four: more than that are confident; exactly that; one only; none.
    assert commits(rule, [view_of([0.9, 0.85, 0.6, 0.95])]) == [[0, 1, 3]]
    assert commits(rule, [view_of([0.9, 0.55, 0.6, 0.95])]) == [[0, 3]]
    assert commits(rule, [view_of([0.9, 0.55, 0.6, 0.7])]) == [[0, 3]]
    assert commits(rule, [view_of([0.6, 0.8, 0.8, 0.7])]) == [[1, 2]]


def test_the_schedule_is_that_of_a_whole_block() -> None:
    # Two of four are due, though one is given.
    assert commits(QuotaThreshold(1.0, 2), [view_of([0.9, 0.7, 0.6, 0.8], committed=1)]) == [[1, 3]]


def test_at_most_the_quota_is_committed_and_the_rest_is_carried_over() -> None:
    rule = QuotaThreshold(0.8, 2, "most")
    first = view_of([0.95, 0.9, 0.85, 0.6])
    assert commits(rule, [first]) == [[0, 1]]
    # One of two was confident: three are allowed in the second step, and two are confident.
    first, second = view_of([0.9, 0.7, 0.6, 0.55]), view_of([0.9, 0.85, 0.8, 0.55], committed=1)
    assert commits(rule, [first, second]) == [[0], [1, 2]]
    # Behind the last step all that is left may go, and the best always does.
    third = view_of([0.9, 0.85, 0.81, 0.9], committed=2)
    assert commits(rule, [first, view_of([0.9, 0.6, 0.6, 0.55], committed=1), third])[2] == [2, 3]
    assert commits(rule, [view_of([0.6, 0.7, 0.55, 0.65])]) == [[1]]
