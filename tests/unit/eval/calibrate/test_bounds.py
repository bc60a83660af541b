"""P-values and the procedure against known truth: tables, enumeration, simulation."""

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pytest

from eval.calibrate.bounds import (
    betting_p,
    binomial_p,
    clopper_pearson,
    max_num_lost,
    num_prompts_needed,
    wealth,
)
from eval.calibrate.procedure import Guarantee, Judgement, certify, judge

Pairs = Sequence[tuple[int | float, int | float]]


def batches(pairs: Pairs, size: int = 10) -> Iterator[Pairs]:
    return (pairs[start : start + size] for start in range(0, len(pairs), size))


@pytest.mark.parametrize(
    ("num_lost", "num_prompts", "max_rate", "delta"),
    # Prompts that certify with no loss at 0.1 and 0.05, and the losses allowed at 0.1.
    [(0, 230, 0.01, 0.1), (0, 299, 0.01, 0.05), (0, 114, 0.02, 0.1), (0, 149, 0.02, 0.05),
     (0, 45, 0.05, 0.1), (0, 59, 0.05, 0.05), (5, 500, 0.02, 0.1), (13, 1000, 0.02, 0.1),
     (18, 500, 0.05, 0.1)],
)  # fmt: skip
def test_the_binomial_certifies_where_the_published_tables_do(
    num_lost: int, num_prompts: int, max_rate: float, delta: float
) -> None:
    assert binomial_p(num_lost, num_prompts, max_rate) <= delta
    fewer = num_prompts - 1 if num_lost == 0 else num_prompts
    more = num_lost if num_lost == 0 else num_lost + 1
    assert binomial_p(more, fewer, max_rate) > delta


def test_the_binomial_is_the_sum_over_all_outcomes() -> None:
    by_hand = sum(
        0.3 ** sum(coins) * 0.7 ** (6 - sum(coins))
        for coins in product((0, 1), repeat=6)
        if sum(coins) <= 2
    )
    assert binomial_p(2, 6, 0.3) == pytest.approx(by_hand)
    assert binomial_p(6, 6, 0.3) == 1.0


@pytest.mark.parametrize(
    ("num_found", "num_cases", "low", "high"),
    # Closed forms at the ends, (alpha / 2) ** (1 / n); a printed table between them.
    [(0, 25, 0.0, 1 - 0.025 ** (1 / 25)), (25, 25, 0.025 ** (1 / 25), 1.0),
     (5, 10, 0.1871, 0.8129), (1, 20, 0.0013, 0.2487)],
)  # fmt: skip
def test_the_exact_interval_of_a_share_is_that_of_the_tables(
    num_found: int, num_cases: int, low: float, high: float
) -> None:
    found = clopper_pearson(num_found, num_cases)
    assert found == pytest.approx((low, high), abs=5e-5)


def test_the_exact_interval_covers_the_true_share_often_enough() -> None:
    for share in (0.02, 0.1, 0.5, 0.93):
        covered = sum(
            binomial_p(k, 30, share) - (binomial_p(k - 1, 30, share) if k else 0.0)
            for k in range(31)
            if clopper_pearson(k, 30).low <= share <= clopper_pearson(k, 30).high
        )
        assert 0.95 <= covered < 1.0


def test_the_most_losses_are_the_last_that_certify() -> None:
    assert max_num_lost(500, 0.02, 0.1) == 5
    assert max_num_lost(1000, 0.02, 0.1) == 13
    assert max_num_lost(20, 0.02, 0.1) == -1


def test_the_wealth_is_a_supermartingale_by_enumeration() -> None:
    """Over all series of a law whose mean drop is the limit, the mean wealth is 1 at every step."""
    limit = 0.1
    law = {1: 0.3, 0: 0.5, -1: 0.2}
    series = np.array(list(product(law, repeat=6)), dtype=float)
    chances = np.prod(np.vectorize(law.__getitem__)(series), axis=1)
    assert chances.sum() == pytest.approx(1.0)
    means = (wealth(series, limit) * chances[:, None]).sum(0)
    assert means == pytest.approx(np.ones(6))
    assert (wealth(series, limit) > 0).all()


def test_stakes_come_from_the_past_alone() -> None:
    rng = np.random.default_rng(0)
    series = rng.choice([-1, 0, 1], size=40)
    later = series.copy()
    later[25:] = 1
    assert wealth(series, 0.05)[:25] == pytest.approx(wealth(later, 0.05)[:25])
    rows = wealth(np.stack([series, later]), 0.05)
    assert rows[1] == pytest.approx(wealth(later, 0.05))


def test_betting_certifies_where_gains_cancel_regressions() -> None:
    pairs: Pairs = [(1, 0), (0, 1), *[(1, 1)] * 48] * 40
    drops = [a - c for a, c in pairs]
    assert betting_p(drops, 0.02) < 0.05 < binomial_p(40, 2000, 0.02)


def test_a_certificate_comes_early_and_a_lack_of_prompts_is_told() -> None:
    early = judge(batches([(1, 1)] * 1000), Guarantee(0.05, 0.9))
    assert early.certified
    assert early.num_prompts < 200
    assert early.binomial_p is None
    late = judge(batches([(1, 1)] * 40), Guarantee(0.02, 0.95, "binomial"))
    assert not late.certified
    assert late.num_needed == 149
    assert judge(batches([(1, 0)] * 40), Guarantee()).num_needed is None
    needed = num_prompts_needed(1, 100, 0.02, 0.05)
    assert needed is not None
    assert binomial_p(-(-needed // 100), needed, 0.02) <= 0.05


def test_the_sequence_ends_at_the_first_setting_without_a_certificate() -> None:
    asked: list[str] = []

    def setting(name: str, pairs: Pairs) -> Iterator[Pairs]:
        asked.append(name)
        yield from batches(pairs)

    good, bad = [(1.0, 1.0)] * 300, [(1.0, 0.0)] * 30 + [(1.0, 1.0)] * 270
    settings = [setting("a", good), setting("b", bad), setting("c", good)]
    verdicts = certify(settings, Guarantee(0.05, 0.9))
    assert [verdict.certified for verdict in verdicts] == [True, False]
    assert asked == ["a", "b"]
    assert (verdicts[1].num_lost, verdicts[1].drop) == (30, pytest.approx(0.1))


@pytest.mark.parametrize("wrong", [{"max_drop": 0.0}, {"max_drop": 1.5}, {"confidence": 1.0}])
def test_impossible_guarantees_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Guarantee(**wrong)  # type: ignore[arg-type]  # on purpose


def test_scores_in_between_need_betting() -> None:
    with pytest.raises(ValueError, match="scores of 0 or 1"):
        judge(batches([(1, 0.5)] * 10), Guarantee())
    assert judge(batches([(0.5, 0.5)] * 500), Guarantee(test="betting")).certified


def simulated(
    regressions: float, gains: float, num_prompts: int, num_runs: int, seed: int
) -> np.ndarray:
    """Paired drops of settings whose regressions and gains have these probabilities."""
    draws = np.random.default_rng(seed).random((num_runs, num_prompts))
    return np.where(draws < regressions, 1, np.where(draws < regressions + gains, -1, 0))


def shares(drops: np.ndarray, guarantee: Guarantee) -> tuple[float, float, float]:
    """Returns how often binomial, betting with optional stopping, and either certify."""
    num_prompts = drops.shape[1]
    limit = max_num_lost(num_prompts, guarantee.max_drop, guarantee.level)
    counted = (drops == 1).sum(1) <= limit
    # Stopped at the best moment: whenever the wealth is ever high enough.
    betted = (wealth(drops, guarantee.max_drop) >= 1 / guarantee.level).any(1)
    return float(counted.mean()), float(betted.mean()), float((counted | betted).mean())


@pytest.mark.parametrize(
    ("max_drop", "regressions", "gains", "num_prompts"),
    [(0.02, 0.02, 0.0, 500), (0.05, 0.05, 0.0, 200), (0.02, 0.05, 0.03, 500),
     (0.05, 0.15, 0.10, 300)],
)  # fmt: skip
@pytest.mark.parametrize("test", ["both", "binomial", "betting"])
def test_at_the_boundary_at_most_delta_of_2000_calibrations_certify_falsely(
    max_drop: float, regressions: float, gains: float, num_prompts: int, test: str
) -> None:
    """The true drop is the limit itself: every certificate is false."""
    guarantee = Guarantee(max_drop, 0.9, test)  # type: ignore[arg-type]  # one of the three
    drops = simulated(regressions, gains, num_prompts, 2000, seed=7)
    binomial, betting, either = shares(drops, guarantee)
    violated = {"binomial": binomial, "betting": betting, "both": either}[test]
    # 0.1 and three standard errors of 2,000 calibrations.
    assert violated <= 0.1 + 3 * (0.1 * 0.9 / 2000) ** 0.5
    if test == "betting" and gains == 0:
        assert violated > 0, "nothing was ever certified"


def test_a_verdict_says_what_was_seen() -> None:
    found = judge(batches([(1, 0), (0, 1), (1, 1), (0, 0)]), Guarantee(0.5, 0.9))
    assert isinstance(found, Judgement)
    assert (found.num_prompts, found.num_lost, found.num_gained, found.drop) == (4, 1, 1, 0.0)
