from dataclasses import replace

import pytest
import torch
from plugins_under_test import committed, pinned, run, still, with_confidences

from samplers import FixedSchedule
from samplers.fixed_schedule import even_quota


@pytest.mark.parametrize("steps_per_block", [1, 3, 8, 40])
def test_the_even_schedule_adds_up_to_each_rows_masks(steps_per_block: int) -> None:
    masks = torch.arange(33)
    quotas = torch.stack(
        [even_quota(masks, steps_per_block, torch.full_like(masks, step)) for step in range(42)]
    )
    assert torch.equal(quotas.sum(0), masks)
    assert ((quotas[:-1] - quotas[1:]) >= 0).all()
    assert quotas[steps_per_block:].sum() == 0
    assert (quotas[:steps_per_block].amax(0) - quotas[:steps_per_block].amin(0) <= 1).all()


def test_given_tokens_in_the_block_are_not_counted() -> None:
    view = with_confidences([0.5, 0.9, 0.5, 0.6, 0.9, 0.7], committed=[1, 4])
    assert committed(FixedSchedule(2), view) == [[3, 5]]


def test_more_steps_than_masks_is_one_token_a_step() -> None:
    assert run(FixedSchedule(9), *still(0.3, 0.2, steps=3)) == [[[0]], [[1]], [[]]]


def test_the_quota_shrinks_to_what_is_left_when_more_was_accepted() -> None:
    sampler = FixedSchedule(2)
    view = with_confidences([0.5, 0.6, 0.7, 0.8])
    _, state = sampler.step(view, sampler.init(view))
    view = with_confidences([0.5, 0.6, 0.7, 0.8], committed=[1, 2, 3])
    assert committed(sampler, view, state) == [[0]]


def test_the_last_step_takes_what_an_earlier_one_left() -> None:
    sampler = FixedSchedule(2)
    view = with_confidences([0.5, 0.6, 0.7, 0.8])
    _, state = sampler.step(view, sampler.init(view))
    # The first step had the first token only, where it should have had two.
    view = with_confidences([0.5, 0.6, 0.7, 0.8], committed=[0])
    assert committed(sampler, view, state) == [[1, 2, 3]]


def test_the_orders_rank_by_their_own_statistic() -> None:
    view = pinned(
        with_confidences([0.5] * 3),
        confidence=[[0.9, 0.8, 0.7]],
        margin=[[0.1, 0.3, 0.2]],
        entropy=[[0.5, 0.6, 0.1]],
    )
    assert committed(FixedSchedule(3, "confidence"), view) == [[0]]
    assert committed(FixedSchedule(3, "margin"), view) == [[1]]
    assert committed(FixedSchedule(3, "entropy"), view) == [[2]]


def test_the_random_order_prefers_no_position() -> None:
    view = with_confidences(*[[0.9, 0.1, 0.5, 0.2]] * 4000)
    keyed = replace(view, noise_keys=torch.arange(4000))
    chosen = torch.tensor(committed(FixedSchedule(4, "random"), keyed)).flatten().bincount()
    # Chi-square with 3 degrees of freedom: 16.3 is passed once in a thousand.
    assert ((chosen - 1000.0) ** 2 / 1000.0).sum() < 16.3


def test_dreams_last_step_takes_all_that_is_left() -> None:
    views = still(*[0.5] * 8, steps=3)
    assert [len(step[0]) for step in run(FixedSchedule(2, schedule="dream"), *views)] == [3, 5, 0]


def test_dreams_quota_counts_the_rows_own_masks() -> None:
    """The official quota is that of the mean over the batch."""
    view = with_confidences([0.5] * 8, [0.5] * 8)
    view.eligible[1, 4:] = False
    assert [len(row) for row in committed(FixedSchedule(2, schedule="dream"), view)] == [3, 1]
