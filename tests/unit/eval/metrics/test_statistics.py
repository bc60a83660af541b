import itertools
import random

import pytest

from eval.metrics import statistics


@pytest.mark.parametrize(
    ("num_right", "num_examples", "low", "high"),
    # Newcombe 1998, table I: method 3; and full marks.
    [(81, 263, 0.2553, 0.3662), (0, 20, 0.0, 0.1611), (20, 20, 0.8389, 1.0)],
)
def test_wilson_is_as_published(num_right: int, num_examples: int, low: float, high: float) -> None:
    assert statistics.wilson(num_right, num_examples) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize("counts", [(1, 0), (-1, 5), (6, 5)])
def test_wilson_intervals_of_impossible_counts_are_refused(counts: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="num_right"):
        statistics.wilson(*counts)


def test_mcnemar_counts_every_split_of_the_discordant_pairs() -> None:
    """The p-value is found again by flipping all 2^9 coins."""
    first = [1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 0]
    second = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0]
    result = statistics.mcnemar(first, second)
    assert (result.gained, result.lost) == (1, 8)
    uneven = sum(abs(sum(flips) - 4.5) >= 3.5 for flips in itertools.product([0, 1], repeat=9))
    assert result.p_value == pytest.approx(uneven / 2**9)


def test_mcnemar_finds_nothing_between_equals_and_refuses_partly_right_examples() -> None:
    assert statistics.mcnemar([1, 0, 1], [1, 0, 1]).p_value == 1.0
    assert statistics.mcnemar([1, 0], [0, 1]).p_value == 1.0
    with pytest.raises(ValueError, match="0 or 1"):
        statistics.mcnemar([0.5], [1])


def test_the_paired_bootstrap_agrees_with_normal_theory_and_repeats() -> None:
    rng = random.Random(1)
    first = [rng.random() for _ in range(400)]
    second = [a + rng.gauss(0.1, 0.2) for a in first]
    interval = statistics.paired_bootstrap(first, second)
    error = statistics.standard_error([b - a for a, b in zip(first, second, strict=True)])
    assert interval.value == pytest.approx(statistics.mean(second) - statistics.mean(first))
    assert interval.low == pytest.approx(interval.value - 1.96 * error, abs=0.1 * error)
    assert interval.high == pytest.approx(interval.value + 1.96 * error, abs=0.1 * error)
    assert interval == statistics.paired_bootstrap(first, second)
    # A constant shift is a point.
    assert statistics.paired_bootstrap([0.0, 1.0, 2.0], [0.5, 1.5, 2.5]) == (0.5, 0.5, 0.5)


def test_the_interval_of_a_share_has_a_width_even_if_all_scores_are_equal() -> None:
    halves = [0.5] * 10
    assert statistics.bootstrap(halves) == (0.5, 0.5)
    expected = ("wilson", statistics.wilson(5, 10))
    assert statistics.share_interval(halves, is_binary=False) == expected
    name, bounds = statistics.share_interval([0.25, 0.75] * 5, is_binary=False)
    assert (name, bounds) == ("bootstrap", statistics.bootstrap([0.25, 0.75] * 5))
    # Means over two seeds of scores of 0 and 1.
    seeds = [0.0, 0.5, 1.0, 1.0]
    expected = ("wilson", statistics.wilson(2.5, 4))
    assert statistics.share_interval(seeds, is_binary=True) == expected


def test_a_ratio_of_sums_is_no_mean_of_ratios() -> None:
    ratio = statistics.ratio_of_sums([10, 1], [10, 10])
    assert ratio.value == 0.55
    assert 0.1 <= ratio.low < ratio.value < ratio.high <= 1.0
    for costs in ([], [1, 2, 3], [0, 1]):
        with pytest.raises(ValueError, match="got"):
            statistics.ratio_of_sums([1, 2], costs)


def test_few_values_have_no_mean_or_no_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        statistics.mean([])
    assert statistics.standard_error([1.0]) == 0.0
