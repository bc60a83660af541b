"""P-values and the procedure against published tables."""

from collections.abc import Iterator

import pytest

from eval.calibration.procedure import Guarantee, Pairs, binomial_p, certify


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
        assert Guarantee(max_rate, 1 - delta).least_prompts == num_prompts


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
