"""Worked examples of the published rules, computed outside this project in float64."""

import math

import pytest
import torch
from plugins_under_test import (
    committed,
    pinned,
    view_of,
    view_with,
    with_confidences,
    with_entropies,
)
from torch import Tensor

from samplers import (
    ConfidenceThreshold,
    EntropyBound,
    Factor,
    FixedSchedule,
    Frechet,
    Hierarchy,
    LocalLeap,
    Sampler,
    View,
)
from samplers.less import _coarse_divergence
from samplers.logits.statistics import divergence


def num_committed(sampler: Sampler, view: View) -> int:
    return len(committed(sampler, view)[0])


def counts_of(sampler: Sampler, num_masks: int) -> list[int]:
    """How many tokens each step commits, until the masks are gone."""
    view = with_confidences([0.9] * max(num_masks, 1), committed=[] if num_masks else [0])
    state, counts = sampler.init(view), []
    while view.eligible.any():
        decision, state = sampler.step(view, state)
        counts.append(int(decision.commit.sum()))
        view = with_confidences(
            [0.9] * num_masks, committed=(~view.eligible | decision.commit)[0].nonzero().flatten()
        )
    return counts


@pytest.mark.parametrize(
    ("masks", "steps", "counts"),
    [
        (10, 4, [3, 3, 2, 2]),
        (7, 4, [2, 2, 2, 1]),
        # The reference goes on with steps of zero, which are skipped here.
        (3, 8, [1, 1, 1]),
        (0, 4, []),
    ],
)
def test_the_even_schedule(masks: int, steps: int, counts: list[int]) -> None:
    assert counts_of(FixedSchedule(steps), masks) == counts


@pytest.mark.parametrize(
    ("steps", "masks", "counts"),
    [
        (8, 8, [1, 1, 1, 1, 1, 1, 2]),
        (4, 8, [1, 2, 2, 3]),
        (8, 32, [3, 4, 4, 4, 4, 4, 4, 5]),
        (256, 256, [*[1] * 254, 2]),
        (128, 256, [1, *[2] * 126, 3]),
    ],
)
def test_dreams_schedule_without_its_idle_first_step(
    steps: int, masks: int, counts: list[int]
) -> None:
    assert counts_of(FixedSchedule(steps, schedule="dream"), masks) == counts


FIVE = (0.99, 0.95, 0.82, 0.78, 0.74)


@pytest.mark.parametrize(
    ("confidences", "factor", "paper", "inclusive", "official"),
    [
        (FIVE, 0.5, 2, 2, 2),
        (FIVE, 0.75, 3, 3, 3),
        (FIVE, 1.0, 3, 3, 3),
        ((0.99, 0.95, 0.90, 0.2), 1.0, 3, 3, 4),
        ((0.9, 0.3), 1.0, 1, 1, 2),
        ((0.6, 0.6, 0.6), 1.0, 1, 1, 1),
    ],
)
def test_factor(
    confidences: tuple[float, ...], factor: float, paper: int, inclusive: int, official: int
) -> None:
    view = with_confidences(confidences)
    assert num_committed(Factor(factor), view) == paper
    assert num_committed(Factor(factor, "inclusive"), view) == inclusive
    assert num_committed(Factor(factor, "official"), view) == official


def test_factor_at_exact_equality() -> None:
    view = pinned(with_confidences([0.75] * 3), confidence=[[0.75] * 3])
    assert num_committed(Factor(1.0), view) == 2
    assert num_committed(Factor(1.0, "inclusive"), view) == 3
    assert num_committed(Factor(1.0, "official"), view) == 3


@pytest.mark.parametrize(("margin", "count"), [(0.5, 3), (0.25, 4), (0.0, 5)])
def test_frechet(margin: float, count: int) -> None:
    assert num_committed(Frechet(margin), with_confidences(FIVE)) == count


@pytest.mark.parametrize(
    ("bound", "count"), [(0.0, 1), (0.02, 2), (0.05, 3), (0.1, 4), (0.2, 5), (1.0, 5)]
)
def test_entropy_bound_in_ascending_order(bound: float, count: int) -> None:
    view = with_entropies([0.01, 0.02, 0.05, 0.08, 0.5])
    assert num_committed(EntropyBound(bound), view) == count


@pytest.mark.parametrize(("bound", "count"), [(0.0, 1), (0.02, 2), (0.1, 3), (0.5, 5)])
def test_entropy_bound_in_another_order(bound: float, count: int) -> None:
    view = with_entropies([0.3, 0.01, 0.02, 0.5, 0.01])
    view = pinned(view, confidence=[[0.9, 0.8, 0.7, 0.6, 0.5]])
    assert num_committed(EntropyBound(bound, "confidence"), view) == count


LEAPS = (0.95, 0.80, 0.70, 0.76, 0.75, 0.76, 0.89, 0.10, 0.20, 0.30, 0.85, 0.91)


def test_local_leap() -> None:
    view = with_confidences(LEAPS, committed=[11])
    view = pinned(view, confidence=[LEAPS])
    assert committed(LocalLeap(), view) == [[0, 1, 3, 4]]
    assert committed(LocalLeap(radius=2), view) == [[0, 1]]
    assert committed(LocalLeap(radius=2), with_confidences(LEAPS)) == [[0, 1, 10, 11]]
    assert committed(LocalLeap(), with_confidences([0.5, 0.89, 0.6])) == [[1]]


def test_hierarchy() -> None:
    confidences = (0.3, 0.5, 0.95, 0.92, 0.5, 0.2, 0.35, 0.5, 0.6, 0.1)
    assert committed(Hierarchy(), with_confidences(confidences, committed=[4, 7])) == [[2, 3, 8]]
    assert committed(Hierarchy(), with_confidences([0.3, 0.2, 0.1])) == [[0]]


@pytest.mark.parametrize(
    ("probabilities", "nats"),
    [
        ((0.9, 0.1), 0.3251),
        ((0.9, 0.05, 0.05), 0.3944),
        ((0.8, 0.2), 0.5004),
        ((0.85, 0.1, 0.05), 0.5182),
        ((0.5, 0.5), 0.6931),
    ],
)
def test_entropy_is_in_nats(probabilities: tuple[float, ...], nats: float) -> None:
    view = view_of(torch.tensor([[probabilities]]).double())
    assert view.entropy.item() == pytest.approx(nats, abs=5e-5)


def kl(new: tuple[float, ...], old: tuple[float, ...]) -> float:
    return divergence(logs(new), logs(old)).item()


def logs(probabilities: tuple[float, ...]) -> Tensor:
    return torch.tensor([[probabilities]]).double().log()


def test_the_divergence_is_that_of_the_new_distribution_from_the_old() -> None:
    new = (0.95, 0.04, 0.01)
    assert kl(new, (0.94, 0.05, 0.01)) == pytest.approx(0.001127, abs=5e-7)
    assert kl(new, (0.80, 0.15, 0.05)) == pytest.approx(0.094293, abs=5e-7)
    assert kl((0.80, 0.15, 0.05), new) != pytest.approx(0.094293, abs=5e-4)


def test_the_divergence_from_the_impossible_is_finite() -> None:
    """The authors' first step compares with zeros: 26.8292 for (.7, .2, .1)."""
    far = kl((0.7, 0.2, 0.1, 0.0), (0.0, 0.0, 0.0, 1.0))
    assert far == pytest.approx(26.8292, abs=5e-5)


def test_the_coarse_divergence() -> None:
    tokens = torch.tensor([[[0, 1, 2]]])
    one, other = torch.tensor([[[0.9, 0.05, 0.05]]]), torch.tensor([[[0.8, 0.1, 0.1]]])
    assert _coarse_divergence(tokens, one, tokens, other).item() == pytest.approx(
        0.009966, abs=5e-7
    )
    one_hot = torch.tensor([[[1.0, 0.0, 0.0]]])
    far = _coarse_divergence(tokens, one_hot, tokens + 3, one_hot)
    assert far.item() == pytest.approx(math.log(2), abs=5e-7)


def test_near_ties_below_the_threshold_are_not_committed_together() -> None:
    """A public implementation also commits what is within 1e-5 of the best; not here."""
    view = with_confidences([0.5, 0.499995, 0.49])
    assert committed(ConfidenceThreshold(0.9), view) == [[0]]


def test_no_truncation_inflates_the_confidence() -> None:
    view = view_of(torch.tensor([[[0.85, 0.06, 0.05, 0.04]]]).double())
    assert view.confidence.item() == pytest.approx(0.85)


def test_bfloat16_logits_are_compared_in_float32() -> None:
    """In bfloat16 itself .899 and .9 are both .8984375, and so would be the threshold."""
    logits = torch.tensor([[[math.log(0.899), math.log(0.101)], [0.0, -1e4]]]).bfloat16()
    view = view_with(logits)
    assert view.confidence.dtype == torch.float32
    assert view.confidence[0, 0].item() not in (0.8984375, 0.90234375)
    exact = logits.double().softmax(-1)[0, 0, 0].item()
    assert view.confidence[0, 0].item() == pytest.approx(exact, abs=1e-6)
