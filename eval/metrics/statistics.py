"""Uncertainty of measured numbers: intervals, paired tests and the bootstrap.

Numbers agree to 1e-12 with scipy.stats, which is not used because it takes 110 MB, and two
seconds to import.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Number: TypeAlias = int | float

NUM_RESAMPLES = 10_000

# Indices (resamples x examples) that the bootstrap draws at once, 32 MB.
_CHUNK = 1 << 22

# Two-sided 95 %: the 0.975 quantile of the standard normal distribution.
Z_95 = 1.959963984540054


class Bounds(NamedTuple):
    """A closed interval."""

    low: float
    high: float


class Estimate(NamedTuple):
    """A number and its interval."""

    value: float
    low: float
    high: float


class McNemar(NamedTuple):
    """An exact McNemar test: examples on which only the second or the first method is right.

    `p_value` is the two-sided probability of a split at least as uneven if both were equally good.
    """

    gained: int
    lost: int
    p_value: float


def mean(values: Sequence[Number]) -> float:
    """Returns the arithmetic mean; raises ValueError if there are no values."""
    return statistics.fmean(values)


def standard_error(values: Sequence[Number]) -> float:
    """Returns the standard error of the mean, with n - 1 degrees of freedom; 0 for one value."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def wilson(num_right: Number, num_examples: int, z: float = Z_95) -> Bounds:
    """Returns Wilson's score interval of a share.

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference",
    https://doi.org/10.1080/01621459.1927.10502953.

    Partly right examples count as fractions. `z` is a quantile of the standard normal distribution,
    by default that of 95 per cent, two-sided. Raises ValueError if there are no examples, or more
    right ones than examples.
    """
    if num_examples < 1 or not 0 <= num_right <= num_examples:
        raise ValueError(
            "A share needs 0 <= num_right <= num_examples and an example, got "
            f"{num_right} of {num_examples}."
        )
    share = num_right / num_examples
    scale = 1 + z**2 / num_examples
    centre = (share + z**2 / (2 * num_examples)) / scale
    spread = share * (1 - share) / num_examples + z**2 / (4 * num_examples**2)
    half = z * math.sqrt(spread) / scale
    return Bounds(max(0.0, centre - half), min(1.0, centre + half))


def mcnemar(first: Sequence[Number], second: Sequence[Number]) -> McNemar:
    """Tests whether two methods are right equally often on the same examples.

    The test is exact, binomial and two-sided, on the examples that exactly one method gets right.

    Source: McNemar 1947, "Note on the sampling error of the difference between correlated
    proportions or percentages", https://doi.org/10.1007/BF02295996.

    Raises ValueError if the lengths differ or a score is neither 0 nor 1.
    """
    _require_pairs(first, second)
    if any(score not in (0, 1) for score in (*first, *second)):
        raise ValueError("McNemar's test needs scores of 0 or 1; use paired_bootstrap for others.")
    gained = sum(1 for a, b in zip(first, second, strict=True) if a < b)
    lost = sum(1 for a, b in zip(first, second, strict=True) if a > b)
    total = gained + lost
    tail = sum(math.comb(total, count) for count in range(min(gained, lost) + 1))
    return McNemar(gained, lost, min(1.0, 2 * tail / (1 << total)))


def paired_score_interval(first: Sequence[Number], second: Sequence[Number]) -> Bounds:
    """Returns the 95 per cent score interval of mean(second) - mean(first), pairs of 0 or 1.

    The interval contains the differences that the score test does not reject. It has width even if
    no pair differs, or all pairs do, where a bootstrap interval would be a point.

    Source: Tango 1998, "Equivalence test and confidence interval for the difference in proportions
    for the paired-sample design", https://doi.org/10.1002/(SICI)1097-0258(19980430)17:8.

    Raises ValueError if the lengths differ or a score is neither 0 nor 1.
    """
    test = mcnemar(first, second)
    n = len(first)
    value = (test.gained - test.lost) / n

    def score(difference: float) -> float:
        """Returns how many standard errors the observed difference is away from this one."""
        b = -test.gained - test.lost + (2 * n - test.gained + test.lost) * difference
        c = -test.lost * difference * (1 - difference)
        lost = (math.sqrt(max(0.0, b * b - 8 * n * c)) - b) / (4 * n)
        variance = n * (2 * lost + difference * (1 - difference))
        return (test.gained - test.lost - n * difference) / math.sqrt(max(variance, 1e-300))

    return Bounds(
        bisect(lambda d: score(d) > Z_95, -1.0, value),
        bisect(lambda d: score(d) > -Z_95, value, 1.0),
    )


def bisect(is_below: Callable[[float], bool], low: float, high: float) -> float:
    """Returns the number between low and high from which on a condition no longer holds."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return (low + high) / 2


def paired_bootstrap(first: Sequence[Number], second: Sequence[Number]) -> Estimate:
    """Returns mean(second) - mean(first) with its 95 per cent bootstrap interval over examples.

    Source: Efron 1979, "Bootstrap methods: another look at the jackknife",
    https://doi.org/10.1214/aos/1176344552; percentile interval.

    Raises ValueError if the lengths differ or there are no examples.
    """
    _require_pairs(first, second)
    differences = np.asarray(second, dtype=np.float64) - np.asarray(first, dtype=np.float64)
    means = _resampled_sums(differences[:, None])[:, 0] / len(differences)
    return Estimate(float(differences.mean()), *_central_95(means))


def bootstrap(values: Sequence[Number]) -> Bounds:
    """Returns the 95 per cent bootstrap interval of the mean over examples.

    For counts of right and wrong use `wilson`. The interval of equal values is a point. Raises
    ValueError if there are no values.
    """
    return Bounds(*paired_bootstrap([0.0] * len(values), values)[1:])


def share_interval(values: Sequence[Number], *, is_binary: bool) -> tuple[str, Bounds]:
    """Returns the name and the bounds of a 95 per cent interval of the mean of values in [0, 1].

    The interval always has a width. It is Wilson's ("wilson") if `is_binary`, or if all values are
    equal, because the bootstrap's then has no width; otherwise the bootstrap's ("bootstrap").
    `is_binary` says that each value is 0 or 1, or a mean of such values: these vary at most as much
    as a share, so that Wilson's interval is too wide rather than too narrow. Raises ValueError if
    there are no values.
    """
    if is_binary or len(set(values)) == 1:
        return "wilson", wilson(math.fsum(values), len(values))
    return "bootstrap", bootstrap(values)


def ratio_of_sums(numerators: Sequence[Number], denominators: Sequence[Number]) -> Estimate:
    """Returns sum(numerators) / sum(denominators) with its 95 per cent bootstrap interval.

    Raises:
        ValueError: If the lengths differ, there are no examples, or a denominator is not positive.
    """
    _require_pairs(numerators, denominators)
    if min(denominators) <= 0:
        raise ValueError(f"Denominators must be positive, got {min(denominators)}.")
    pairs = np.stack([numerators, denominators], axis=1).astype(np.float64)
    sums = _resampled_sums(pairs)
    total = pairs.sum(axis=0)
    return Estimate(float(total[0] / total[1]), *_central_95(sums[:, 0] / sums[:, 1]))


def _require_pairs(first: Sequence[Number], second: Sequence[Number]) -> None:
    if len(first) != len(second) or not len(first):
        raise ValueError(
            "Paired values must be equally many and at least one, got "
            f"{len(first)} and {len(second)}; compare the same examples."
        )


def _resampled_sums(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the sums of the columns of 10,000 resamples of the rows, with seed 0."""
    generator = np.random.default_rng(0)
    size = max(1, _CHUNK // len(rows))
    columns = np.ascontiguousarray(rows.T)
    sums = []
    for start in range(0, NUM_RESAMPLES, size):
        count = min(size, NUM_RESAMPLES - start)
        chosen = generator.integers(len(rows), size=(count, len(rows)))
        # Column by column, because sums along contiguous numbers take a tenth of the time.
        sums.append(np.stack([column.take(chosen).sum(axis=1) for column in columns], axis=1))
    return np.concatenate(sums)


def _central_95(values: NDArray[np.float64]) -> Bounds:
    low, high = np.quantile(values, [0.025, 0.975])
    return Bounds(float(low), float(high))
