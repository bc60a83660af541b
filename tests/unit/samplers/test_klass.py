import torch
from plugins_under_test import pinned, positions, run, still

from samplers import Klass


def test_the_confidence_excludes_equality() -> None:
    views = [
        pinned(view, confidence=[[0.75, 0.9, 0.95, 0.8]])
        for view in still(0.5, 0.5, 0.5, 0.5, steps=3)
    ]
    assert run(Klass(0.75), *views) == [[[2]], [[1]], [[3]]]


def test_a_fallback_follows_the_schedule_and_never_exceeds_what_is_masked() -> None:
    """The official fallback also took committed positions, and wrote over their tokens."""
    views = still(0.5, 0.4, 0.3, 0.2, 0.1, steps=3)
    assert run(Klass(steps_per_block=2), *views) == [[[0, 1, 2]], [[3, 4]], [[]]]
    # An acceptance in between leaves fewer masks than the schedule wants.
    views = still(0.95, 0.95, 0.95, 0.95, 0.95, 0.95, 0.1, steps=4)
    sampler = Klass(num_stable_steps=1, steps_per_block=2)
    assert run(sampler, *views) == [[[0, 1, 2, 3]], [[4, 5]], [[6]], [[]]]


def test_after_the_schedule_one_token_a_step_is_left() -> None:
    """The official loop ends there, with masks in the block."""
    views = still(0.5, 0.4, 0.3, 0.2, steps=3)
    sampler = Klass(steps_per_block=1)
    state = sampler.init(views[0])
    _, state = sampler.step(views[0], state)
    decision, _ = sampler.step(views[1], state)
    assert positions(decision.commit) == [[0]]


def test_tokens_that_become_impossible_do_no_harm() -> None:
    first, second, third = still(0.95, 0.96, 0.97, 0.98, steps=3)
    for view in (second, third):
        view.logits[0, 0, 5] = -torch.inf
    assert run(Klass(kl_threshold=0.01), first, second, third) == [[[3]], [[2]], [[0, 1]]]
