"""Samplers on models without errors of their own: accuracy and forwards known in closed form.

Ties are broken by noise far below any difference of probabilities, so a parameter that equals a
probability exactly is moved by `NUDGE` to the side that the test means.
"""

import itertools
import math
from fractions import Fraction

import pytest

from dllm_decode import DecodeOutput, decode
from eval.metrics.statistics import wilson
from eval.oracle.joint import Joint
from eval.oracle.oracle import OracleModel
from samplers import ConfidenceThreshold, EntropyBound, Factor, FixedSchedule, Sampler

NUDGE = 1e-6
# The number of rows and the width of the gate: one false alarm in 150,000 tests.
NUM_ROWS = 400
Z = 4.5


def replace_random(n: int) -> Joint:
    return Joint.uniform([(*range(i), n, *range(i + 1, n)) for i in range(n)])


def insert_random(n: int) -> Joint:
    return Joint.uniform([(*range(i), n, *range(i, n)) for i in range(n + 1)])


def shuffle(n: int) -> Joint:
    return Joint.uniform(itertools.permutations(range(n)))


def run(
    joint: Joint, sampler: Sampler, *, temperature: float = 0.0, num_rows: int = NUM_ROWS
) -> DecodeOutput:
    model = OracleModel(joint)
    return decode(
        model, [model.prompt(i) for i in range(num_rows)], sampler, gen_length=joint.length,
        block_length=joint.length, temperature=temperature, stop_at_eos=False,
    )  # fmt: skip


def assert_accuracy(out: DecodeOutput, joint: Joint, expected: float | Fraction) -> None:
    answers = out.tokens.tolist()
    right = sum(map(OracleModel(joint).is_right, answers))
    low, high = wilson(right, len(answers), z=Z)
    if expected in (0, 1):
        low = high = right / len(answers)
    assert low <= expected <= high


LN2 = math.log(2)
# Sampler, answers, accuracy and forwards.
KNOWN: list[tuple[Sampler, Joint, float | Fraction, int]] = [
    # The sharpest test of (n + 1) (1 - c): other counts of the selected give other forwards.
    *((Factor(1.0 - NUDGE), replace_random(n), 1, 3) for n in (3, 20)),
    *((Factor(0.7), replace_random(n), 1, nfe) for n, nfe in ((3, 3), (10, 5), (20, 6))),
    (Factor(1.3), replace_random(4), 0, 1),
    (Factor(1.9), shuffle(5), Fraction(1, 2), 4),
    # A threshold flips at the share of unchanged items.
    (ConfidenceThreshold(7 / 8 + NUDGE), replace_random(8), 1, 8),
    (ConfidenceThreshold(7 / 8 - NUDGE), replace_random(8), 0, 1),
    # One token a step until j items are left, then all j at once: right in j! of j^j cases.
    *((ConfidenceThreshold(1 / j - NUDGE), shuffle(5), Fraction(math.factorial(j), j**j), 6 - j)
      for j in (2, 4)),
    # The last step decides a replacement: 2 positions are right in half of the cases.
    (FixedSchedule(3), replace_random(6), Fraction(1, 2), 3),
    (EntropyBound(0.5 * LN2 + NUDGE), replace_random(5), 1, 5),
    (EntropyBound(1.0 * LN2 + NUDGE), replace_random(5), 1, 3),
    (EntropyBound(2.0 * LN2 + NUDGE), replace_random(5), Fraction(1, 2), 2),
    (EntropyBound(LN2 - NUDGE), shuffle(5), 1, 5),
    (EntropyBound(LN2 + NUDGE), shuffle(5), Fraction(1, 2), 4),
]  # fmt: skip


@pytest.mark.parametrize(("sampler", "joint", "accuracy", "nfe"), KNOWN, ids=repr)
def test_accuracy_and_forwards_are_those_of_the_closed_form(
    sampler: Sampler, joint: Joint, accuracy: float | Fraction, nfe: int
) -> None:
    out = run(joint, sampler, num_rows=100 if accuracy in (0, 1) else NUM_ROWS)
    assert_accuracy(out, joint, accuracy)
    assert set(out.nfe.tolist()) == {nfe}


@pytest.mark.parametrize("joint", [replace_random(4), insert_random(3), shuffle(4)])
def test_random_orders_at_temperature_1_have_the_exact_accuracy(joint: Joint) -> None:
    out = run(joint, FixedSchedule(2, "random"), temperature=1.0)
    places, half = range(joint.length), (joint.length + 1) // 2
    orders = [
        (first, [place for place in places if place not in first])
        for first in itertools.combinations(places, half)
    ]
    assert_accuracy(out, joint, sum(map(joint.accuracy, orders)) / Fraction(len(orders)))


def test_random_order_draws_from_the_distribution_and_confidence_order_does_not() -> None:
    """One token a step at temperature 1, insertion into three items: four right answers.

    Ranking by the probability of the drawn token is a selection; its law is (0.145, 0.355, 0.355,
    0.145). Both orders are always right, so accuracy does not tell them apart.
    """
    joint = insert_random(3)
    chi_square = {}
    for order in ("random", "confidence"):
        out = run(joint, FixedSchedule(4, order), temperature=1.0)
        rows = [tuple(row) for row in out.tokens.tolist()]
        counts = [rows.count(answer) for answer in joint.answers]
        assert sum(counts) == NUM_ROWS
        chi_square[order] = sum((c - NUM_ROWS / 4) ** 2 / (NUM_ROWS / 4) for c in counts)
    # The upper 1e-5 quantile of chi-square with 3 degrees of freedom.
    assert chi_square["random"] < 25.9
    assert chi_square["confidence"] > 40
    for count, share in zip(counts, (0.145, 0.355, 0.355, 0.145), strict=True):
        assert count / NUM_ROWS == pytest.approx(share, abs=Z * 0.5 / math.sqrt(NUM_ROWS) + 5e-4)
