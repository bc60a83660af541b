import math

import torch
from plugins_under_test import committed, pinned, with_confidences

from samplers import Factor, Frechet


def random_profiles() -> list[list[float]]:
    generator = torch.Generator().manual_seed(2)
    return (1.0 - 0.3 * torch.rand(200, 8, generator=generator) ** 2).tolist()


def test_it_commits_a_superset_of_the_factor_rule() -> None:
    view, larger = with_confidences(*random_profiles()), 0
    for margin in (0.0, 0.25, 0.6):
        ours = committed(Frechet(margin), view)
        theirs = committed(Factor(1.0 - margin), view)
        for one, other in zip(ours, theirs, strict=True):
            assert set(one) >= set(other)
            larger += len(one) > len(other)
    assert larger


def test_on_equal_confidences_it_is_the_factor_rule() -> None:
    for confidence in (0.71, 0.83, 0.92, 0.97):
        view = with_confidences([confidence] * 12)
        assert committed(Frechet(0.25), view) == committed(Factor(0.75), view)


def test_the_lead_must_exceed_the_margin() -> None:
    view = pinned(with_confidences([0.5] * 2), confidence=[[1.0, 0.75]])
    assert committed(Frechet(0.5), view) == [[0]]
    assert committed(Frechet(0.4375), view) == [[0, 1]]


def test_margin_one_is_one_token_and_minus_infinity_a_block() -> None:
    view = with_confidences([0.4, 0.99, 0.99], [0.1, 0.1, 0.1])
    assert committed(Frechet(1.0), view) == [[1], [0]]
    assert committed(Frechet(-math.inf), view) == [[0, 1, 2], [0, 1, 2]]


def test_a_joint_probability_is_never_below_zero() -> None:
    """Without the bound at 0 the second lead would be .2 - .9 - .9 = -1.6."""
    view = with_confidences([0.1, 0.1])
    assert committed(Frechet(-0.95), view) == [[0, 1]]
