import itertools

import pytest

from eval.metrics import metrics
from eval.metrics.metrics import TradeOff

# The points published with AUP (d3LLM, AUP leaderboard, LLaDA family), and the published values.
GSM8K_BEST = 0.7498
GSM8K = {
    "one token a step": ([(1.0, 0.7255)], 72.55),
    "Fast-dLLM": ([(1.0, 0.7479), (2.77, 0.7468)], 205.8),
    "d3LLM": ([(1.0, 0.7402), (9.11, 0.7309)], 637.7),
}


@pytest.mark.parametrize("method", GSM8K)
def test_aup_is_the_published_value(method: str) -> None:
    points, published = GSM8K[method]
    curve = [TradeOff(*point) for point in points]
    assert metrics.aup(curve, GSM8K_BEST) == pytest.approx(published, abs=0.06)
    assert metrics.aup(curve[::-1], GSM8K_BEST) == metrics.aup(curve, GSM8K_BEST)


def test_aup_depends_on_the_competitors_and_leaves_out_what_is_too_low() -> None:
    points = [TradeOff(*point) for point in GSM8K["d3LLM"][0]]
    assert metrics.aup(points, 0.8394) == pytest.approx(485.7, abs=0.06)
    assert metrics.aup([TradeOff(1.0, 0.8), TradeOff(3.0, 0.7)], 0.8) == pytest.approx(80.0)
    # 0.17 - 0.05 is above 0.12 in float64.
    assert metrics.aup([TradeOff(1.0, 0.17), TradeOff(3.0, 0.12)], 0.17) > 35.0


# ParallelBench's leaderboard was computed from curves that its site shows rounded to 0.1.
THRESHOLD = [(1.3, 0.86), (3.4, 0.84), (4.5, 0.77), (5.6, 0.68), (6.6, 0.58), (8.3, 0.47)]
WINO = [(1.0, 0.86), (5.0, 0.85), (5.9, 0.80), (6.6, 0.73), (7.3, 0.67), (8.2, 0.62)]


@pytest.mark.parametrize(
    ("points", "accuracy", "published"),
    [(THRESHOLD, 0.80, 4.09), (THRESHOLD, 0.70, 5.42), (WINO, 0.75, 6.40)],
)
def test_speed_at_accuracy_is_the_published_value(
    points: list[tuple[float, float]], accuracy: float, published: float
) -> None:
    speed = metrics.speed_at_accuracy([TradeOff(*point) for point in points], accuracy)
    assert speed == pytest.approx(published, abs=0.09)


def test_a_pb_score_is_the_speed_of_a_setting_and_never_between_two() -> None:
    points = [TradeOff(1.0, 0.95), TradeOff(3.0, 0.8), TradeOff(2.0, 0.85), TradeOff(8.0, 0.4)]
    scores = [metrics.pb_score(points, accuracy) for accuracy in (0.96, 0.9, 0.8, 0.6, 0.4)]
    assert scores == [None, 1.0, 3.0, 3.0, 8.0]
    assert metrics.speed_at_accuracy(points, 0.6) == pytest.approx(5.5)


def test_speed_at_accuracy_takes_the_last_crossing_or_nothing() -> None:
    curve = [TradeOff(1.0, 0.9), TradeOff(2.0, 0.5), TradeOff(3.0, 0.7), TradeOff(4.0, 0.5)]
    assert metrics.speed_at_accuracy(curve, 0.6) == pytest.approx(3.5)
    assert metrics.speed_at_accuracy(curve, 0.95) is None
    assert metrics.speed_at_accuracy(curve[:1], 0.2) == 1.0


def test_the_pareto_front_keeps_what_nothing_beats() -> None:
    points = [TradeOff(*point) for point in ((1, 0.9), (2, 0.8), (2, 0.7), (3, 0.8), (3, 0.8))]
    assert metrics.pareto_front(points) == [0, 3]


def test_speeds_are_ratios_of_sums() -> None:
    assert metrics.tokens_per([100, 2], [10, 2]) == 8.5


def test_order_correlation_is_tau_b() -> None:
    """Against the definition, pair by pair."""
    for steps in itertools.product(range(3), repeat=4):
        concordant = discordant = tied = 0
        for a, b in itertools.combinations(steps, 2):
            concordant += a < b
            discordant += a > b
            tied += a == b
        untied, pairs = concordant + discordant, concordant + discordant + tied
        expected = (concordant - discordant) / max(1, untied * pairs) ** 0.5
        assert metrics.order_correlation(steps) == (pytest.approx(expected) if untied else None)
    assert metrics.order_correlation([5]) is None
