"""P-values of the hypothesis that a setting loses too much: exact, at any number of prompts."""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Shaped
from numpy.typing import NDArray

from eval.metrics.statistics import Number

# Beyond this many prompts a certificate is out of reach.
MAX_PROMPTS = 1_000_000


def binomial_p(num_lost: int, num_prompts: int, max_rate: float) -> float:
    """Returns P(Bin(n, max_rate) <= num_lost), exactly.

    This is a p-value of "the rate of losses is above `max_rate`" for a number of prompts that was
    fixed before looking. If losses are regressions (right under the reference, wrong under the
    setting), the drop of the accuracy is at most their rate, so the test certifies the drop too.

    Source: Angelopoulos et al. 2021, "Learn then Test", https://arxiv.org/abs/2110.01052, the exact
    test of a binary loss.
    """
    log_rate, log_rest = math.log(max_rate), math.log1p(-max_rate)
    terms = [
        math.lgamma(num_prompts + 1) - math.lgamma(i + 1) - math.lgamma(num_prompts - i + 1)
        + i * log_rate + (num_prompts - i) * log_rest
        for i in range(num_lost + 1)
    ]  # fmt: skip
    return min(1.0, math.fsum(math.exp(term) for term in terms))


def wealth(drops: Shaped[np.ndarray, "*S n"], max_drop: float) -> NDArray[np.float64]:
    """Returns a bettor's wealth, prompt by prompt, against a mean drop of at least `max_drop`.

    K_t = product over s <= t of 1 + v_s (max_drop - d_s), with stakes v_s from the past alone:
    (max_drop - m) / (s2 + (max_drop - m)^2) within [0, 1 / (2 (1 - max_drop))], where m and s2 are
    the running mean and variance, 0 and 1/4 before the first prompt. If the mean drop is at least
    `max_drop`, the wealth is a supermartingale: the probability that it ever reaches 1 / delta is
    at most delta (Ville), however many prompts are added and whenever the test stops.

    Source: Waudby-Smith and Ramdas 2020, "Estimating means of bounded random variables by betting",
    https://arxiv.org/abs/2010.09686, approximate Kelly stakes.

    Differs: Drops are in [-1, 1], so stakes are capped such that one loss costs at most half.

    Args:
        drops: Score under the reference less that under the setting, each in [-1, 1], in the order
            in which prompts were asked; leading axes are independent series.
        max_drop: Greatest drop that is allowed, in (0, 1).
    """
    series = np.asarray(drops, dtype=np.float64)
    wealth_path = np.empty_like(series)
    current, mean = np.ones(series.shape[:-1]), np.zeros(series.shape[:-1])
    spread, variance = np.full(series.shape[:-1], 0.25), np.full(series.shape[:-1], 0.25)
    cap = 0.5 / (1 - max_drop)
    for index in range(series.shape[-1]):
        edge = max_drop - mean
        stake = np.clip(edge / (variance + edge**2), 0.0, cap)
        drop = series[..., index]
        current = current * (1 + stake * (max_drop - drop))
        wealth_path[..., index] = current
        # The prior counts as one prompt without a drop.
        mean = mean + (drop - mean) / (index + 2)
        spread = spread + (drop - mean) ** 2
        variance = spread / (index + 2)
    return wealth_path


def betting_p(drops: Sequence[Number], max_drop: float) -> float:
    """Returns 1 / max over t of the wealth: a p-value that is valid whenever the test stops."""
    if not len(drops):
        return 1.0
    return min(1.0, 1.0 / float(wealth(np.asarray(drops), max_drop).max()))


def num_prompts_needed(
    num_lost: int, num_prompts: int, max_rate: float, level: float
) -> int | None:
    """Returns how many prompts in all would certify if losses went on at the observed rate.

    None if no number up to a million does; `level` is the probability of a false certificate.
    """
    rate = num_lost / num_prompts
    if rate >= max_rate:
        return None
    low, high = num_prompts, num_prompts
    while binomial_p(math.ceil(rate * high), high, max_rate) > level:
        low, high = high, 2 * high
        if high > MAX_PROMPTS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        certified = binomial_p(math.ceil(rate * middle), middle, max_rate) <= level
        low, high = (low, middle) if certified else (middle, high)
    return high
