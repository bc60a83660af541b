"""P-values and the procedure against known truth: tables and simulation."""

from collections.abc import Iterator

import numpy as np
import pytest

from eval.studies.procedure import Guarantee, Pairs, binomial_p, certify


@pytest.mark.parametrize(
    ("num_lost", "num_prompts", "max_rate", "delta"),
    # Prompts that certify with no loss at 0.1 and 0.05, and the losses allowed at 0.1.
    [(0, 230, 0.01, 0.1), (0, 149, 0.02, 0.05), (5, 500, 0.02, 0.1), (18, 500, 0.05, 0.1)],
)  # fmt: skip
def test_the_binomial_certifies_where_the_published_tables_do(
    num_lost: int, num_prompts: int, max_rate: float, delta: float
) -> None:
    assert binomial_p(num_lost, num_prompts, max_rate) <= delta
    assert binomial_p(num_lost + 1, num_prompts, max_rate) > delta
    if num_lost == 0:
        assert binomial_p(0, num_prompts - 1, max_rate) > delta


def test_the_sequence_ends_at_the_first_setting_without_a_certificate() -> None:
    good: Pairs = [(1.0, 1.0)] * 299 + [(0.0, 1.0)]
    bad: Pairs = [(1.0, 0.5)] * 30 + [(1.0, 1.0)] * 270
    asked: list[Pairs] = []

    def settings() -> Iterator[Pairs]:
        for pairs in (good, bad, good):
            asked.append(pairs)
            yield pairs

    verdicts = certify(settings(), Guarantee(0.05, 0.9))
    assert [verdict.certified for verdict in verdicts] == [True, False]
    assert asked == [good, bad]
    assert (verdicts[0].num_lost, verdicts[0].num_gained) == (0, 1)
    assert (verdicts[1].num_lost, verdicts[1].drop) == (30, pytest.approx(0.05))


@pytest.mark.parametrize("wrong", [{"max_drop": 0.0}, {"max_drop": 1.5}, {"confidence": 1.0}])
def test_impossible_guarantees_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Guarantee(**wrong)  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize(("max_drop", "num_prompts"), [(0.02, 500), (0.05, 200)])
def test_at_the_boundary_at_most_delta_of_2000_calibrations_certify_falsely(
    max_drop: float, num_prompts: int
) -> None:
    """The true drop is the limit itself: every certificate is false."""
    num_lost = np.random.default_rng(7).binomial(num_prompts, max_drop, 2000).tolist()
    level = Guarantee(max_drop, 0.9).level
    violated = np.mean([binomial_p(lost, num_prompts, max_drop) <= level for lost in num_lost])
    # 0.1 and three standard errors of 2,000 calibrations.
    assert 0 < violated <= 0.1 + 3 * (0.1 * 0.9 / 2000) ** 0.5
