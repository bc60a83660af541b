from plugins_under_test import committed, pinned, run, still

from samplers import Klass


def test_the_confidence_excludes_equality() -> None:
    views = [
        pinned(view, confidence=[[0.75, 0.9, 0.95, 0.8]])
        for view in still(0.5, 0.5, 0.5, 0.5, steps=3)
    ]
    assert run(Klass(0.75), *views) == [[[2]], [[1]], [[3]]]


def test_a_fallback_follows_the_schedule_and_commits_one_token_a_step_after_it() -> None:
    """The official loop ends with the schedule, with masks in the block."""
    first, second = still(0.5, 0.4, 0.3, 0.2, 0.1, steps=2)
    assert run(Klass(steps_per_block=2), first, second) == [[[0, 1, 2]], [[3, 4]]]
    sampler, (first, second) = Klass(steps_per_block=1), still(0.5, 0.4, 0.3, steps=2)
    _, state = sampler.step(first, sampler.init(first))
    assert committed(sampler, second, state) == [[0]]
