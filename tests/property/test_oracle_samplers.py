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
from samplers_under_test import INSTANCES

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
    """What came out: rows that are right, and forwards."""

    right: list[bool]
    nfe: list[int]

    @property
    def accuracy(self) -> float:
        return sum(self.right) / len(self.right)


def run(
    joint: Joint, sampler: Sampler, *, temperature: float = 0.0, num_rows: int = NUM_ROWS
) -> Counts:
    model = OracleModel([joint])
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


@pytest.mark.parametrize(
    ("factor", "forwards", "accuracy"),
    [
        # The sharpest test of (n + 1) (1 - c): other counts of the selected give other forwards.
        (1.0 - NUDGE, {3: 3, 4: 3, 6: 3, 10: 3, 20: 3}, 1.0),
        (0.7, {3: 3, 4: 4, 6: 4, 10: 5, 20: 6}, 1.0),
        (1.3, {4: 1, 6: 1, 10: 1}, 0.0),
    ],
)
def test_factors_on_a_replacement(factor: float, forwards: dict[int, int], accuracy: float) -> None:
    for n, nfe in forwards.items():
        counts = run(replace_random(n), Factor(factor), num_rows=200)
        assert counts.accuracy == accuracy
        assert set(counts.nfe) == {nfe}


@pytest.mark.parametrize("n", [3, 4, 5])
def test_factors_on_a_shuffle(n: int) -> None:
    for factor in (1.0, 1.3):
        counts = run(shuffle(n), Factor(factor), num_rows=200)
        assert counts.accuracy == 1.0
        assert set(counts.nfe) == {n}
    counts = run(shuffle(n), Factor(1.9))
    assert_accuracy(counts, 0.5)
    assert set(counts.nfe) == {n - 1}


@pytest.mark.parametrize("n", [3, 5, 8])
def test_the_threshold_flips_at_the_share_of_unchanged_items(n: int) -> None:
    confidence = (n - 1) / n
    above = run(replace_random(n), ConfidenceThreshold(confidence + NUDGE), num_rows=200)
    assert above.accuracy == 1.0
    assert set(above.nfe) == {n}
    below = run(replace_random(n), ConfidenceThreshold(confidence - NUDGE), num_rows=200)
    assert below.accuracy == 0.0
    assert set(below.nfe) == {1}


@pytest.mark.parametrize("n", [4, 5])
@pytest.mark.parametrize("j", [2, 3, 4])
def test_thresholds_on_a_shuffle(n: int, j: int) -> None:
    """One token a step until j items are left, then all j at once: right in j! of j^j cases."""
    counts = run(shuffle(n), ConfidenceThreshold(1 / j - NUDGE))
    assert_accuracy(counts, Fraction(math.factorial(j), j**j))
    assert set(counts.nfe) == {n - j + 1}
    counts = run(shuffle(n), ConfidenceThreshold(0.5 + NUDGE), num_rows=200)
    assert counts.accuracy == 1.0
    assert set(counts.nfe) == {n}


@pytest.mark.parametrize(("bits", "accuracy", "nfe"), [(0.5, 1.0, 5), (1.0, 1.0, 3), (2.0, 0.5, 2)])
def test_entropy_bounds_on_a_replacement(bits: float, accuracy: float, nfe: int) -> None:
    counts = run(replace_random(5), EntropyBound(bits * math.log(2) + NUDGE))
    assert_accuracy(counts, accuracy)
    assert set(counts.nfe) == {nfe}


@pytest.mark.parametrize("n", [3, 5])
def test_entropy_bounds_on_a_shuffle(n: int) -> None:
    below = run(shuffle(n), EntropyBound(math.log(2) - NUDGE), num_rows=200)
    assert below.accuracy == 1.0
    assert set(below.nfe) == {n}
    above = run(shuffle(n), EntropyBound(math.log(2) + NUDGE))
    assert_accuracy(above, 0.5)
    assert set(above.nfe) == {n - 1}


def test_a_threshold_agrees_in_two_forwards() -> None:
    counts = run(agree(6), ConfidenceThreshold(0.5), num_rows=200)
    assert counts.accuracy == 1.0
    assert set(counts.nfe) == {2}
    fixed = run(agree(6), FixedSchedule(3))
    assert_accuracy(fixed, Fraction(1, 3))


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
        model = OracleModel([joint])
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


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_where_there_is_one_answer_every_sampler_finds_it(
    sampler: Sampler,
) -> None:
    counts = run(Joint.uniform([(0, 1, 2, 3, 4, 5)]), sampler, temperature=1.0, num_rows=8)
    assert counts.accuracy == 1.0


@dataclass
class Steps:
    """What steps from possible states did: a state is possible if some answer agrees with it.

    Attributes:
        num_single: Steps that committed one token.
        broken: Tokens committed by each step that led to an impossible state.
    """

    num_single: int
    broken: list[int]


def steps_of(joint: Joint, sampler: Sampler) -> Steps:
    model, steps = OracleModel([joint]), Steps(0, [])
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


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
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
