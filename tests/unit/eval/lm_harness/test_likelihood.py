"""Answers' log-likelihoods against distributions that are known exactly."""

import math
import random
from collections import Counter
from fractions import Fraction
from itertools import permutations

import pytest
import torch
from tiny_models import FAMILIES, Spied, tiny
from torch import Tensor
from toys import HashModel

from dllm_decode import MaskPredictor, StepEvent, decode
from eval.lm_harness.likelihood import Estimator, LeftToRight, Likelihood, MonteCarlo
from eval.oracle.joint import Joint
from eval.oracle.oracle import OracleModel
from samplers import FixedSchedule

# Positions depend on each other, and answers differ in their probability.
JOINT = Joint(
    {
        (0, 1, 2, 0): Fraction(1, 2),
        (0, 2, 1, 0): Fraction(1, 4),
        (1, 0, 2, 2): Fraction(1, 8),
        (2, 2, 2, 1): Fraction(1, 16),
        (1, 1, 1, 1): Fraction(1, 16),
    }
)
LOGS = {answer: math.log(p) for answer, p in JOINT.answers.items()}


@pytest.mark.parametrize("causal_block_length", [0, 3])
@pytest.mark.parametrize("logit_shift", [0, 1])
def test_left_to_right_is_exact(logit_shift: int, causal_block_length: int) -> None:
    """The prompts' lengths put the first answer token at any place of a block."""
    model = OracleModel(
        JOINT, noise=0.0, logit_shift=logit_shift, causal_block_length=causal_block_length
    )
    pairs = [(model.prompt(0, length=3 + i), answer) for i, answer in enumerate(LOGS)]
    scored = Likelihood(model, LeftToRight(), batch_size=3).score(pairs)
    log_likelihoods = [s.log_likelihood for s in scored]
    assert log_likelihoods == pytest.approx(list(LOGS.values()), abs=1e-12)


@pytest.mark.parametrize("causal_block_length", [0, 3])
@pytest.mark.parametrize("num_samples", [1, 4])
def test_monte_carlo_is_unbiased(num_samples: int, causal_block_length: int) -> None:
    model = OracleModel(JOINT, noise=0.0, causal_block_length=causal_block_length)
    answer = (1, 0, 2, 2)
    pairs = [(model.prompt(i), answer) for i in range(400)]
    likelihood = Likelihood(model, MonteCarlo(num_samples), batch_size=400)
    log_likelihoods = torch.tensor(
        [s.log_likelihood for s in likelihood.score(pairs)], dtype=torch.float64
    )
    standard_error = log_likelihoods.std() / len(log_likelihoods) ** 0.5
    assert standard_error > 0.0
    assert abs(log_likelihoods.mean() - LOGS[answer]) < 4 * standard_error


def test_monte_carlo_is_the_mean_over_all_orders_of_a_model_without_a_joint() -> None:
    """Conditionals that agree with no joint distribution tell the weights of the patterns apart."""
    model, prompt, answer = HashModel(), (3, 1), (4, 11, 7)
    logs = [_chain(model, prompt, answer, order) for order in permutations(range(3))]
    assert max(logs) - min(logs) > 0.5
    estimates = [
        Likelihood(model, MonteCarlo(10), seed).score([(prompt, answer)])[0] for seed in range(200)
    ]
    values = torch.tensor([estimate.log_likelihood for estimate in estimates], dtype=torch.float64)
    assert abs(values.mean() - sum(logs) / 6) < 4 * values.std() / 200**0.5


@pytest.mark.parametrize("family", FAMILIES)
def test_the_conditionals_are_those_that_samplers_see(family: str) -> None:
    """Shift, padding, block-causal attention and banned tokens, against the engine's views."""
    model = Spied(tiny(family))
    # A token to which the model would give some probability.
    model.banned_ids = (1, *model.banned_ids)
    pairs, expected = [], []
    for prompt in ([5, 9, 4], [7, 3, 8, 6, 2, 5, 10]):
        # The engine fills a block-causal model's last block with masks; here none may be added.
        assert not model.causal_block_length or (len(prompt) + 5) % model.causal_block_length == 0
        for rank_of_last in (1, 2):
            answer: list[int] = []
            total = 0.0
            for rank in (1, 1, 1, 1, rank_of_last):
                logs = _next_token(model, prompt, answer)
                answer.append(int(logs.argsort()[-rank]))
                total += logs[answer[-1]].item()
            pairs.append((prompt, answer))
            expected.append(total)
    scored = Likelihood(model, LeftToRight(), batch_size=4).score(pairs)
    assert [s.log_likelihood for s in scored] == pytest.approx(expected)
    assert [s.is_greedy for s in scored] == [True, False] * 2
    (unknown,) = Likelihood(model, MonteCarlo(2)).score(pairs[:1])
    assert unknown.is_greedy is None


@pytest.mark.parametrize("estimator", [LeftToRight(), MonteCarlo(6)])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_score_does_not_depend_on_the_batch(family: str, estimator: Estimator) -> None:
    model = tiny(family)
    pairs = [([5, 9, 4], [11, 4, 9]), ([7], [3]), ([8, 6, 2, 5, 10, 4], [12, 9, 3, 3, 8, 7, 11])]
    alone = [Likelihood(model, estimator, seed=5, batch_size=1).score([pair])[0] for pair in pairs]
    for batch_size in (2, 64):
        together = Likelihood(model, estimator, seed=5, batch_size=batch_size).score(pairs)
        for single, batched in zip(alone, together, strict=True):
            assert single.log_likelihood == pytest.approx(batched.log_likelihood, rel=1e-9)
            assert single.is_greedy == batched.is_greedy
    other_seed = Likelihood(model, estimator, seed=6).score(pairs)
    moved = other_seed[2].log_likelihood - alone[2].log_likelihood
    assert (abs(moved) > 1e-6) == isinstance(estimator, MonteCarlo)


@pytest.mark.parametrize("estimator", [LeftToRight(), MonteCarlo(6)])
def test_the_cost_is_what_the_model_was_asked_for(estimator: Estimator) -> None:
    model = Spied(tiny("llada"))
    scored = Likelihood(model, estimator, batch_size=4).score(
        [([5, 9, 4], [11, 4, 9]), ([5, 9, 4], [11]), ([5, 9], [])]
    )
    patterns = 3 if isinstance(estimator, LeftToRight) else 6
    assert sum(len(call.tokens) for call in model.calls) == patterns + 1
    assert len(model.calls) == -(-(patterns + 1) // 4)
    assert scored[2] == (0.0, True)


def test_the_numbers_of_masks_are_equally_spaced() -> None:
    for length, num_samples in ((4, 8), (5, 5), (7, 3), (2, 9)):
        for seed in range(40):
            patterns = MonteCarlo(num_samples).patterns(length, random.Random(seed))
            counts = Counter(len(pattern.masked) for pattern in patterns)
            assert max(counts.values()) <= math.ceil(num_samples / length)


@pytest.mark.parametrize(
    ("prompt", "answer", "message"),
    [
        ([], [1], "A prompt must have at least one token"),
        ([23], [1], "have no \\[MASK\\], got its id 23"),
        ([1], [2, 23], "have no \\[MASK\\], got its id 23"),
    ],
)
def test_impossible_pairs_are_refused(prompt: list[int], answer: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Likelihood(HashModel(), LeftToRight()).score([([1], [2]), (prompt, answer)])


def _chain(
    model: HashModel, prompt: tuple[int, ...], answer: tuple[int, ...], order: tuple[int, ...]
) -> float:
    canvas = torch.tensor([[*prompt, *[model.mask_id] * len(answer)]])
    total = 0.0
    for position in order:
        column = len(prompt) + position
        logits = model.logits_of(canvas)[0, column]
        logits[model.mask_id] = -torch.inf
        total += logits.log_softmax(-1)[answer[position]].item()
        canvas[0, column] = answer[position]
    return total


def _next_token(model: MaskPredictor, prompt: list[int], begun: list[int]) -> Tensor:
    """Returns log-probabilities of the next token of an answer of five, as samplers see them."""
    events: list[StepEvent] = []
    decode(
        model, [prompt], FixedSchedule(), templates=[begun], gen_length=5,
        block_length=model.causal_block_length or 5, stop_at_eos=False, observers=[events.append],
    )  # fmt: skip
    view = events[0].view
    return view.logits[0, view.positions[0].tolist().index(len(begun))].log_softmax(-1)
