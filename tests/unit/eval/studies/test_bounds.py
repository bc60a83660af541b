"""P-values and the procedure against known truth: tables, enumeration, simulation."""

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pytest

from eval.studies import bounds
from eval.studies.procedure import Guarantee, certify, judge

Pairs = Sequence[tuple[int | float, int | float]]


def batches(pairs: Pairs, size: int = 10) -> Iterator[Pairs]:
    return (pairs[start : start + size] for start in range(0, len(pairs), size))


@pytest.mark.parametrize(
    ("num_lost", "num_prompts", "max_rate", "delta"),
    # Prompts that certify with no loss at 0.1 and 0.05, and the losses allowed at 0.1.
    [(0, 230, 0.01, 0.1), (0, 149, 0.02, 0.05), (5, 500, 0.02, 0.1), (18, 500, 0.05, 0.1)],
)  # fmt: skip
def test_the_binomial_certifies_where_the_published_tables_do(
    num_lost: int, num_prompts: int, max_rate: float, delta: float
) -> None:
    assert bounds.binomial_p(num_lost, num_prompts, max_rate) <= delta
    assert bounds.binomial_p(num_lost + 1, num_prompts, max_rate) > delta
    if num_lost == 0:
        assert bounds.binomial_p(0, num_prompts - 1, max_rate) > delta


def test_the_wealth_is_a_supermartingale_by_enumeration() -> None:
    """Over all series of a law whose mean drop is the limit, the mean wealth is 1 at every step."""
    limit = 0.1
    law = {1: 0.3, 0: 0.5, -1: 0.2}
    series = np.array(list(product(law, repeat=6)), dtype=float)
    chances = np.prod(np.vectorize(law.__getitem__)(series), axis=1)
    assert chances.sum() == pytest.approx(1.0)
    means = (bounds.wealth(series, limit) * chances[:, None]).sum(0)
    assert means == pytest.approx(np.ones(6))
    assert (bounds.wealth(series, limit) > 0).all()


def test_betting_certifies_where_gains_cancel_regressions() -> None:
    pairs: Pairs = [(1, 0), (0, 1), *[(1, 1)] * 48] * 40
    for test, certified in (("betting", True), ("binomial", False)):
        assert judge(batches(pairs), Guarantee(0.02, 0.95, test)).certified == certified


def test_a_certificate_comes_early_and_a_lack_of_prompts_is_told() -> None:
    early = judge(batches([(1, 0), (0, 1), *[(1, 1)] * 998]), Guarantee(0.05, 0.9))
    assert early.certified
    assert early.num_prompts < 200
    assert (early.num_lost, early.num_gained, early.drop) == (1, 1, 0.0)
    assert early.binomial_p is None
    late = judge(batches([(1, 1)] * 40), Guarantee(0.02, 0.95, "binomial"))
    assert not late.certified
    assert late.num_needed == 149
    assert judge(batches([(1, 0)] * 40), Guarantee()).num_needed is None
    needed = bounds.num_prompts_needed(1, 100, 0.02, 0.05)
    assert bounds.binomial_p(-(-needed // 100), needed, 0.02) <= 0.05


def test_the_sequence_ends_at_the_first_setting_without_a_certificate() -> None:
    decoded: list[str] = []

    def setting(name: str, pairs: Pairs) -> Iterator[Pairs]:
        decoded.append(name)
        yield from batches(pairs)

    good, bad = [(1.0, 1.0)] * 300, [(1.0, 0.0)] * 30 + [(1.0, 1.0)] * 270
    settings = [setting("a", good), setting("b", bad), setting("c", good)]
    verdicts = certify(settings, Guarantee(0.05, 0.9))
    assert [verdict.certified for verdict in verdicts] == [True, False]
    assert decoded == ["a", "b"]
    assert (verdicts[1].num_lost, verdicts[1].drop) == (30, pytest.approx(0.1))


@pytest.mark.parametrize("wrong", [{"max_drop": 0.0}, {"max_drop": 1.5}, {"confidence": 1.0}])
def test_impossible_guarantees_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Guarantee(**wrong)  # type: ignore[arg-type]  # on purpose


def test_scores_in_between_need_betting() -> None:
    with pytest.raises(ValueError, match="scores of 0 or 1"):
        judge(batches([(1, 0.5)] * 10), Guarantee())
    assert judge(batches([(0.5, 0.5)] * 500), Guarantee(test="betting")).certified


@pytest.mark.parametrize(
    ("max_drop", "regressions", "gains", "num_prompts"),
    [(0.02, 0.02, 0.0, 500), (0.05, 0.05, 0.0, 200), (0.02, 0.05, 0.03, 500)],
)
def test_at_the_boundary_at_most_delta_of_2000_calibrations_certify_falsely(
    max_drop: float, regressions: float, gains: float, num_prompts: int
) -> None:
    """The true drop is the limit itself: every certificate is false."""
    draws = np.random.default_rng(7).random((2000, num_prompts))
    drops = np.where(draws < regressions, 1, np.where(draws < regressions + gains, -1, 0))
    # Each calibration stops at its best moment, where its wealth is highest.
    best = bounds.wealth(drops, max_drop).max(1)
    for test in ("both", "binomial", "betting"):
        level = Guarantee(max_drop, 0.9, test).level
        most = sum(bounds.binomial_p(n, num_prompts, max_drop) <= level for n in range(num_prompts))
        counted = (drops == 1).sum(1) < most
        betted = best >= 1 / level
        violated = {"binomial": counted, "betting": betted, "both": counted | betted}[test].mean()
        # 0.1 and three standard errors of 2,000 calibrations.
        assert violated <= 0.1 + 3 * (0.1 * 0.9 / 2000) ** 0.5
    assert gains or betted.any(), "nothing was ever certified"
