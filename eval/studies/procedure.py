"""Learn then test with a fixed sequence: settings from cautious to bold, until one fails."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from eval.metrics.statistics import Number
from eval.studies.bounds import betting_p, binomial_p, num_prompts_needed

Test: TypeAlias = Literal["both", "binomial", "betting"]
Pairs: TypeAlias = Sequence[tuple[Number, Number]]
"""Scores of some prompts, under the reference and under a setting."""


@dataclass(frozen=True)
class Guarantee:
    """The promise that is to be certified.

    Attributes:
        max_drop: Greatest drop of the accuracy; with agreement, greatest rate of other answers.
        confidence: Probability with which no setting is certified falsely.
        test: "binomial" on regressions, for few pairs that differ; "betting" on the drop, where
            regressions and gains cancel, and which may stop early; "both", each at half the error.
            Choose it before looking.
    """

    max_drop: float = 0.02
    confidence: float = 0.95
    test: Test = "both"

    def __post_init__(self) -> None:
        for name, share in (("max_drop", self.max_drop), ("confidence", self.confidence)):
            if not 0.0 < share < 1.0:
                raise ValueError(f"{name} must be in (0, 1), got {share}.")

    @property
    def level(self) -> float:
        """Probability of a false certificate that each test may spend."""
        return (1 - self.confidence) / (2 if self.test == "both" else 1)

    @property
    def bets(self) -> bool:
        """True if the betting test is used."""
        return self.test != "binomial"

    @property
    def counts(self) -> bool:
        """True if the binomial test is used."""
        return self.test != "betting"


@dataclass(frozen=True)
class Judgement:
    """The verdict on one setting.

    Attributes:
        num_lost: Regressions; with agreement, answers that differ.
        num_gained: Prompts wrong under the reference and right under the setting.
        drop: Observed mean drop of the score.
        binomial_p: None if the test is not used, or the betting test certified early.
        betting_p: None if the test is not used.
        num_needed: Prompts that would certify at the observed rate of losses; None if certified,
            or if no number would.
    """

    certified: bool
    num_prompts: int
    num_lost: int
    num_gained: int
    drop: float
    binomial_p: float | None
    betting_p: float | None
    num_needed: int | None = None


def judge(pairs: Iterator[Pairs], guarantee: Guarantee) -> Judgement:
    """Tests one setting, prompt by prompt; stops as soon as the betting test certifies.

    `pairs` are batches of scores under the reference and under the setting, in the order of the
    prompts. With agreement the reference's score is 1, and the setting's 1 if it agrees. Raises
    ValueError without prompts, or if the binomial test is needed for scores other than 0 and 1.
    """
    seen: list[tuple[Number, Number]] = []
    betting = exact = None
    certified = False
    for batch in pairs:
        seen += batch
        if guarantee.bets:
            betting = betting_p([a - c for a, c in seen], guarantee.max_drop)
            certified = betting <= guarantee.level
        if certified:
            break
    if not seen:
        raise ValueError("A calibration needs at least one prompt, got none.")
    drops = [a - c for a, c in seen]
    num_lost, num_prompts = sum(drop > 0 for drop in drops), len(seen)
    if not certified and guarantee.counts:
        if any(score not in (0, 1) for pair in seen for score in pair):
            raise ValueError(
                f"The test {guarantee.test!r} needs scores of 0 or 1, got others; "
                "choose --test betting."
            )
        exact = binomial_p(num_lost, num_prompts, guarantee.max_drop)
        certified = exact <= guarantee.level
    return Judgement(
        certified=certified,
        num_prompts=num_prompts,
        num_lost=num_lost,
        num_gained=sum(drop < 0 for drop in drops),
        drop=sum(drops) / num_prompts,
        binomial_p=exact,
        betting_p=betting,
        num_needed=None if certified else num_prompts_needed(
            num_lost, num_prompts, guarantee.max_drop, guarantee.level
        ),
    )  # fmt: skip


def certify(settings: Iterable[Iterator[Pairs]], guarantee: Guarantee) -> list[Judgement]:
    """Tests settings in their order and stops at the first that cannot be certified.

    Each setting is an iterator as `judge` takes it; iterators of untested settings are not started.
    Only the last verdict may be without a certificate.

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
