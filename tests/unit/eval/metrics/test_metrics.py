import itertools
import math
from fractions import Fraction

import pytest

from eval.metrics.metrics import (
    TradeOff,
    aup,
    commits_per_step,
    leftmost_share,
    order_correlation,
    pareto_front,
    pass_at,
    speed_at_accuracy,
    tokens_per,
    wall_speedup,
)

# The points published with AUP (d3LLM, AUP leaderboard, LLaDA family), and the published values.
GSM8K_BEST = 0.7498
GSM8K = {
    "AR": ([(1.0, 0.741)], 74.1),
    "one token a step": ([(1.0, 0.7255)], 72.55),
    "Fast-dLLM": ([(1.0, 0.7479), (2.77, 0.7468)], 205.8),
    "D2F": ([(1.0, 0.7498), (2.88, 0.7439)], 213.8),
    "dParallel": ([(1.0, 0.74), (5.14, 0.7263)], 358.1),
    "d3LLM": ([(1.0, 0.7402), (9.11, 0.7309)], 637.7),
}


@pytest.mark.parametrize("method", GSM8K)
def test_aup_is_the_published_value(method: str) -> None:
    points, published = GSM8K[method]
    curve = [TradeOff(*point) for point in points]
    assert aup(curve, GSM8K_BEST) == pytest.approx(published, abs=0.06)
    assert aup(curve[::-1], GSM8K_BEST) == aup(curve, GSM8K_BEST)


def test_aup_depends_on_the_competitors() -> None:
    points = [TradeOff(*point) for point in GSM8K["d3LLM"][0]]
    assert aup(points, 0.8394) == pytest.approx(485.7, abs=0.06)


def test_aup_leaves_out_what_is_too_low() -> None:
    high, low = TradeOff(1.0, 0.8), TradeOff(3.0, 0.7)
    assert aup([high, low], 0.8) == pytest.approx(80.0)


# ParallelBench's leaderboard was computed from curves that its site shows rounded to 0.1.
THRESHOLD = [(1.3, 0.86), (3.4, 0.84), (4.5, 0.77), (5.6, 0.68), (6.6, 0.58), (8.3, 0.47)]
WINO = [(1.0, 0.86), (5.0, 0.85), (5.9, 0.80), (6.6, 0.73), (7.3, 0.67), (8.2, 0.62)]


@pytest.mark.parametrize(
    ("points", "accuracy", "published"),
    [
        (THRESHOLD, 0.80, 4.09), (THRESHOLD, 0.75, 4.82), (THRESHOLD, 0.70, 5.42),
        (WINO, 0.80, 5.92), (WINO, 0.75, 6.40), (WINO, 0.70, 6.93),
    ],
)  # fmt: skip
def test_speed_at_accuracy_is_the_published_value(
    points: list[tuple[float, float]], accuracy: float, published: float
) -> None:
    found = speed_at_accuracy([TradeOff(*point) for point in points], accuracy)
    assert found == pytest.approx(published, abs=0.09)


def test_speed_at_accuracy_takes_the_last_crossing_or_nothing() -> None:
    curve = [TradeOff(1.0, 0.9), TradeOff(2.0, 0.5), TradeOff(3.0, 0.7), TradeOff(4.0, 0.5)]
    assert speed_at_accuracy(curve, 0.6) == pytest.approx(3.5)
    assert speed_at_accuracy(curve, 0.7) == pytest.approx(3.0)
    assert speed_at_accuracy(curve, 0.95) is None
    assert speed_at_accuracy(curve[:1], 0.2) == 1.0


def test_the_pareto_front_keeps_what_nothing_beats() -> None:
    points = [TradeOff(*point) for point in ((1, 0.9), (2, 0.8), (2, 0.7), (3, 0.8), (3, 0.8))]
    assert pareto_front(points) == [0, 3]
    assert pareto_front([]) == []


def test_speeds_are_ratios_of_sums() -> None:
    assert tokens_per([100, 2], [10, 2]) == 8.5
    assert tokens_per([100, 50], [2.0, 1.0]) == 50.0
    assert wall_speedup([2.0, 8.0], [1.0, 1.0]) == pytest.approx(4.0)


def test_order_correlation_is_tau_b() -> None:
    """Against the definition, pair by pair."""
    for steps in itertools.product(range(3), repeat=4):
        concordant = discordant = tied = 0
        for a, b in itertools.combinations(steps, 2):
            concordant += a < b
            discordant += a > b
            tied += a == b
        untied, pairs = concordant + discordant, concordant + discordant + tied
        expected = (concordant - discordant) / (untied * pairs) ** 0.5 if untied else None
        assert order_correlation(steps) == (None if expected is None else pytest.approx(expected))


def test_left_to_right_and_right_to_left_are_told_apart() -> None:
    assert order_correlation([0, 1, 2, 3]) == 1.0
    assert order_correlation([3, 2, 1, 0]) == -1.0
    assert order_correlation([0, 0]) is None
    assert order_correlation([5]) is None
    assert leftmost_share([0, 2, 1]) == pytest.approx(2 / 3)
    assert leftmost_share([]) is None
    assert commits_per_step([0, 0, 1, 4, 4, 4, 7]) == {1: 2, 2: 1, 3: 1}


def test_the_leftmost_share_is_what_a_replay_counts() -> None:
    for steps in itertools.product(range(4), repeat=5):
        hits = 0
        for step in set(steps):
            leftmost = next(i for i, at in enumerate(steps) if at >= step)
            hits += steps[leftmost] == step
        assert leftmost_share(steps) == hits / len(set(steps))


def test_pass_at_k_is_the_share_of_sets_with_a_right_answer() -> None:
    for num_answers in range(1, 9):
        for num_right in range(num_answers + 1):
            answers = [True] * num_right + [False] * (num_answers - num_right)
            for k in range(1, num_answers + 1):
                sets = [any(chosen) for chosen in itertools.combinations(answers, k)]
                expected = sum(sets) / len(sets)
                assert pass_at(k, num_answers, num_right) == pytest.approx(expected, abs=1e-12)


def test_pass_at_k_needs_no_large_numbers() -> None:
    # By fractions: 1 - C(99900, 5000) / C(100000, 5000).
    exact = 1 - math.prod(Fraction(100_000 - 5000 - i, 100_000 - i) for i in range(100))
    assert pass_at(5000, 100_000, 100) == pytest.approx(float(exact), rel=1e-9)
    assert pass_at(1, 3, 1) == pytest.approx(1 / 3)
