"""Learn then test with a fixed sequence: settings from cautious to bold, until one fails."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from eval.metrics.statistics import Number

Pairs: TypeAlias = Sequence[tuple[Number, Number]]
"""Scores in [0, 1] of all prompts, under the reference and under a setting."""


@dataclass(frozen=True)
class Guarantee:
    """The promise that is to be certified.

    Attributes:
        max_drop: Greatest drop of the mean score.
        confidence: Probability with which no setting is certified falsely.
    """

    max_drop: float = 0.02
    confidence: float = 0.95

    def __post_init__(self) -> None:
        for name, share in (("max_drop", self.max_drop), ("confidence", self.confidence)):
            if not 0.0 < share < 1.0:
                raise ValueError(f"{name} must be in (0, 1), got {share}.")

    @property
    def level(self) -> float:
        """Probability of a false certificate."""
        return 1 - self.confidence

    @property
    def least_prompts(self) -> int:
        """Fewest prompts with which a setting that loses none is certified."""
        return math.ceil(math.log(self.level) / math.log1p(-self.max_drop))


@dataclass(frozen=True)
class Judgement:
    """The verdict on one setting.

    Attributes:
        num_lost: Prompts with a lower score under the setting than under the reference.
        num_gained: Prompts with a higher score.
        drop: Observed mean drop of the score.
        p_value: Of the hypothesis that the mean drop is too large; see `binomial_p`.
    """

    certified: bool
    num_prompts: int
    num_lost: int
    num_gained: int
    drop: float
    p_value: float


def binomial_p(num_lost: int, num_prompts: int, max_rate: float) -> float:
    """Returns P(Bin(n, max_rate) <= num_lost), exactly.

    This is a p-value of "the rate of lost prompts is above `max_rate`" for a number of prompts that
    was fixed before looking. A prompt loses at most a score of 1, so the mean drop is at most the
    rate of lost prompts, and the test certifies the drop too.

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


def judge(pairs: Pairs, guarantee: Guarantee) -> Judgement:
    """Tests one setting on at least one prompt."""
    drops = [reference - score for reference, score in pairs]
    num_lost, num_prompts = sum(drop > 0 for drop in drops), len(drops)
    p_value = binomial_p(num_lost, num_prompts, guarantee.max_drop)
    return Judgement(
        certified=p_value <= guarantee.level,
        num_prompts=num_prompts,
        num_lost=num_lost,
        num_gained=sum(drop < 0 for drop in drops),
        drop=sum(drops) / num_prompts,
        p_value=p_value,
    )


def certify(settings: Iterable[Pairs], guarantee: Guarantee) -> list[Judgement]:
    """Tests settings in their order and stops at the first that cannot be certified.

    The pairs of later settings are not asked for. Only the last verdict may be without a
    certificate.

    The probability that any certified setting breaks the guarantee is at most 1 - confidence,
    without a correction for their number: only the first setting that truly breaks it can be
    certified falsely, and every later one is reached through it. Prompts must be exchangeable with
    those of the deployment, and the list, the order and the numbers chosen before looking.

    Source: Angelopoulos et al. 2021, "Learn then Test: Calibrating Predictive Algorithms to Achieve
    Risk Control", https://arxiv.org/abs/2110.01052, fixed sequence testing.
    """
    verdicts: list[Judgement] = []
    for pairs in settings:
        verdicts.append(judge(pairs, guarantee))
        if not verdicts[-1].certified:
            break
    return verdicts
