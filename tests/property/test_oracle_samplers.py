"""Samplers on models without errors of their own: accuracy and forwards known in closed form.

Ties are broken by noise far below any difference of probabilities, so a parameter that equals a
probability exactly is moved by `NUDGE` to the side that the test means.
"""

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction

import pytest
import torch
from plugins_under_test import INSTANCES, one_of_each_kind

from dllm_decode import Canvas, StepEvent, decode
from eval.metrics.statistics import wilson
from eval.oracle.joint import Joint, even_sizes
from eval.oracle.oracle import OracleModel
from samplers import (
    ConfidenceThreshold,
    EntropyBound,
    Factor,
    FixedSchedule,
    Frechet,
    JointThresholdInDel,
    Sampler,
)

NUDGE = 1e-6
# The number of rows and the width of the gate: one false alarm in 150,000 tests.
NUM_ROWS = 400
Z = 4.5
# Tokens of the answers would delete and insert.
SAMPLERS = [sampler for sampler in INSTANCES if not isinstance(sampler, JointThresholdInDel)]


def replace_random(n: int) -> Joint:
    return Joint.uniform([(*range(i), n, *range(i + 1, n)) for i in range(n)])


def insert_random(n: int) -> Joint:
    return Joint.uniform([(*range(i), n, *range(i, n)) for i in range(n + 1)])


def shuffle(n: int) -> Joint:
    return Joint.uniform(itertools.permutations(range(n)))


def agree(n: int) -> Joint:
    return Joint.uniform([(symbol,) * n for symbol in range(3)])


@dataclass
class Counts:
    """Says of each row if its answer is right, and counts its forwards."""

    right: list[bool]
    nfe: list[int]

    @property
    def accuracy(self) -> float:
        return sum(self.right) / len(self.right)


def run(
    joint: Joint, sampler: Sampler, *, temperature: float = 0.0, num_rows: int = NUM_ROWS
) -> Counts:
    model = OracleModel(joint)
    out = decode(
        model, [model.prompt(i) for i in range(num_rows)], sampler, gen_length=joint.length,
        block_length=joint.length, temperature=temperature, stop_at_eos=False,
    )  # fmt: skip
    right = [model.is_right(row) for row in out.tokens.tolist()]
    return Counts(right, out.nfe.tolist())


def assert_accuracy(counts: Counts, expected: float | Fraction) -> None:
    low, high = wilson(sum(counts.right), len(counts.right), z=Z)
    if expected in (0, 1):
        assert counts.accuracy == expected
    else:
        assert low <= expected <= high


LN2 = math.log(2)
# Sampler, answers, accuracy and forwards.
KNOWN: list[tuple[Sampler, Joint, float | Fraction, int]] = [
    # The sharpest test of (n + 1) (1 - c): other counts of the selected give other forwards.
    *((Factor(1.0 - NUDGE), replace_random(n), 1, 3) for n in (3, 4, 6, 10, 20)),
    *((Factor(0.7), replace_random(n), 1, nfe) for n, nfe in ((3, 3), (4, 4), (10, 5), (20, 6))),
    *((Factor(1.3), replace_random(n), 0, 1) for n in (4, 6, 10)),
    *((Factor(factor), shuffle(n), 1, n) for n in (3, 5) for factor in (1.0, 1.3)),
    *((Factor(1.9), shuffle(n), Fraction(1, 2), n - 1) for n in (3, 5)),
    # A threshold flips at the share of unchanged items.
    *((ConfidenceThreshold((n - 1) / n + NUDGE), replace_random(n), 1, n) for n in (3, 8)),
    *((ConfidenceThreshold((n - 1) / n - NUDGE), replace_random(n), 0, 1) for n in (3, 8)),
    # One token a step until j items are left, then all j at once: right in j! of j^j cases.
    *(
        (ConfidenceThreshold(1 / j - NUDGE), shuffle(5), Fraction(math.factorial(j), j**j), 6 - j)
        for j in (2, 3, 4)
    ),
    (ConfidenceThreshold(0.5 + NUDGE), shuffle(5), 1, 5),
    (ConfidenceThreshold(0.5), agree(6), 1, 2),
    (FixedSchedule(3), agree(6), Fraction(1, 3), 3),
    (EntropyBound(0.5 * LN2 + NUDGE), replace_random(5), 1, 5),
    (EntropyBound(1.0 * LN2 + NUDGE), replace_random(5), 1, 3),
    (EntropyBound(2.0 * LN2 + NUDGE), replace_random(5), Fraction(1, 2), 2),
    *((EntropyBound(LN2 - NUDGE), shuffle(n), 1, n) for n in (3, 5)),
    *((EntropyBound(LN2 + NUDGE), shuffle(n), Fraction(1, 2), n - 1) for n in (3, 5)),
]


@pytest.mark.parametrize(("sampler", "joint", "accuracy", "nfe"), KNOWN, ids=repr)
def test_accuracy_and_forwards_are_those_of_the_closed_form(
    sampler: Sampler, joint: Joint, accuracy: float | Fraction, nfe: int
) -> None:
    counts = run(joint, sampler, num_rows=100 if accuracy in (0, 1) else NUM_ROWS)
    assert_accuracy(counts, accuracy)
    assert set(counts.nfe) == {nfe}


@pytest.mark.parametrize("num_steps", [1, 2, 3, 5])
def test_greedy_fixed_schedules(num_steps: int) -> None:
    """The last step decides a replacement: 1 position is right, 2 are in half, 3 never."""
    n = 5
    sizes = even_sizes(n, num_steps)
    counts = run(replace_random(n), FixedSchedule(num_steps))
    assert_accuracy(counts, {1: 1, 2: Fraction(1, 2)}.get(sizes[-1], 0))
    shuffled = run(shuffle(n), FixedSchedule(num_steps))
    starts = [sum(sizes[:step]) for step in range(len(sizes))]
    partition = [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    assert_accuracy(shuffled, shuffle(n).accuracy(partition))
    assert set(shuffled.nfe) == {num_steps}


@pytest.mark.parametrize("num_steps", [1, 2, 4])
@pytest.mark.parametrize("joint", [replace_random(4), insert_random(3), shuffle(4)])
def test_random_orders_at_temperature_1_have_the_exact_accuracy(
    joint: Joint, num_steps: int
) -> None:
    counts = run(joint, FixedSchedule(num_steps, "random"), temperature=1.0)
    expected = joint.random_order_accuracy(even_sizes(joint.length, num_steps))
    assert_accuracy(counts, expected)
    assert set(counts.nfe) == {num_steps}


def test_random_order_draws_from_the_distribution_and_confidence_order_does_not() -> None:
    """One token a step at temperature 1, insertion into three items: four right answers.

    Ranking by the probability of the drawn token is a selection; its law is (0.145, 0.355, 0.355,
    0.145). Both orders are always right, so accuracy does not tell them apart.
    """
    joint = insert_random(3)
    chi_square = {}
    for order in ("random", "confidence"):
        model = OracleModel(joint)
        out = decode(
            model, [model.prompt(i) for i in range(NUM_ROWS)], FixedSchedule(4, order),
            gen_length=4, block_length=4, temperature=1.0, stop_at_eos=False,
        )  # fmt: skip
        rows = [tuple(row) for row in out.tokens.tolist()]
        counts = [rows.count(answer) for answer in joint.answers]
        assert sum(counts) == NUM_ROWS
        chi_square[order] = sum((c - NUM_ROWS / 4) ** 2 / (NUM_ROWS / 4) for c in counts)
    # The upper 1e-5 quantile of chi-square with 3 degrees of freedom.
    assert chi_square["random"] < 25.9
    assert chi_square["confidence"] > 40
    for count, share in zip(counts, (0.145, 0.355, 0.355, 0.145), strict=True):
        assert count / NUM_ROWS == pytest.approx(share, abs=Z * 0.5 / math.sqrt(NUM_ROWS) + 5e-4)


@pytest.mark.parametrize("sampler", one_of_each_kind(SAMPLERS))
def test_where_there_is_one_answer_every_sampler_finds_it(sampler: Sampler) -> None:
    counts = run(Joint.uniform([(0, 1, 2, 3, 4, 5)]), sampler, temperature=1.0, num_rows=8)
    assert counts.accuracy == 1.0


@dataclass
class Steps:
    """Counts steps from possible states: a state is possible if some answer agrees with it.

    Attributes:
        num_single: Steps that committed one token.
        broken: Tokens committed by each step that led to an impossible state.
    """

    num_single: int
    broken: list[int]


def steps_of(joint: Joint, sampler: Sampler) -> Steps:
    model, steps = OracleModel(joint), Steps(0, [])
    answers = torch.tensor(list(joint.answers))

    def is_possible(canvas: Canvas) -> torch.Tensor:
        known = canvas.answers()[:, None]
        return ((known == answers) | (known == model.mask_id)).all(-1).any(-1)

    def watch(event: StepEvent) -> None:
        widths = (event.before.masked & ~event.after.masked).sum(-1)
        before = is_possible(event.before)
        steps.num_single += int((before & (widths == 1)).sum())
        steps.broken += widths[before & ~is_possible(event.after)].tolist()

    decode(
        model, [model.prompt(i) for i in range(40)], sampler, gen_length=joint.length,
        block_length=joint.length, temperature=1.0, stop_at_eos=False, observers=[watch],
    )  # fmt: skip
    return steps


# They commit everything in one step, so that they never commit a single token.
ALL_AT_ONCE = (EntropyBound(math.inf, "margin"), Frechet(-math.inf))


@pytest.mark.parametrize("sampler", one_of_each_kind(SAMPLERS))
def test_a_row_can_go_wrong_only_where_a_step_commits_several_tokens(sampler: Sampler) -> None:
    """A draw from the exact conditional of one position keeps an answer possible, in any order.

    The law once looked at rows that commit one token in every step; nine samplers had none.
    """
    found = [steps_of(joint, sampler) for joint in (shuffle(3), shuffle(4), insert_random(4))]
    broken = [width for steps in found for width in steps.broken]
    assert all(width > 1 for width in broken)
    if sampler in ALL_AT_ONCE:
        assert broken, "no state ever became impossible"
    else:
        assert sum(steps.num_single for steps in found) > 20, "hardly a step commits one token"
