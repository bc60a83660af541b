from typing import Any

import pytest
from plugins_under_test import committed, still, with_confidences

from samplers import FixedSchedule


def counts_of(sampler: FixedSchedule, num_masks: int) -> list[int]:
    """Returns how many tokens each step commits."""
    view = still(*[0.9] * max(num_masks, 1), steps=1)[0]
    view.eligible[:, num_masks:] = False
    state, counts = sampler.init(view), []
    while view.eligible.any():
        decision, state = sampler.step(view, state)
        counts.append(int(decision.commit.sum()))
        view.eligible[decision.commit] = False
    return counts


@pytest.mark.parametrize(
    ("schedule", "steps", "masks", "counts"),
    [
        ("even", 4, 10, [3, 3, 2, 2]), ("even", 4, 7, [2, 2, 2, 1]),
        # The reference goes on with steps of zero, which are skipped here.
        ("even", 8, 3, [1, 1, 1]), ("even", 4, 0, []),
        # Dream's, without its idle first step; the last step takes all that is left.
        ("dream", 8, 8, [1, 1, 1, 1, 1, 1, 2]), ("dream", 4, 8, [1, 2, 2, 3]),
        ("dream", 8, 32, [3, 4, 4, 4, 4, 4, 4, 5]), ("dream", 256, 256, [*[1] * 254, 2]),
        ("dream", 128, 256, [1, *[2] * 126, 3]), ("dream", 2, 8, [3, 5]),
    ],
)  # fmt: skip
def test_the_published_schedules(schedule: Any, steps: int, masks: int, counts: list[int]) -> None:
    assert counts_of(FixedSchedule(steps, schedule=schedule), masks) == counts


def test_the_last_step_takes_what_an_earlier_one_left() -> None:
    sampler = FixedSchedule(2)
    view = with_confidences([0.5, 0.6, 0.7, 0.8])
    _, state = sampler.step(view, sampler.init(view))
    # The first step committed the first token only, although it should have committed two.
    view = with_confidences([0.5, 0.6, 0.7, 0.8], committed=[0])
    assert committed(sampler, view, state) == [[1, 2, 3]]
    # No more steps are planned than there are masks, and each step commits a token.
    sampler, view = FixedSchedule(4), with_confidences([0.5])
    _, state = sampler.step(view, sampler.init(view))
    assert committed(sampler, view, state) == [[0]]
