"""T2M: which tokens are doubtful, how many are re-masked, and how a block ends."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tiny_models import tiny
from torch import Tensor

from dllm_decode import StepEvent, decode
from samplers import T2M, Decision, Fact, Sampler, View
from samplers.logits.summary import Summary
from samplers.t2m import Revised

PROMPTS = [[17, 40, 41, 300, 5, 77], [99], [7, 7, 250, 31, 12, 13, 14, 444, 90]]
MASK_ID = 9
# The second re-masks all of a block at once: counts begin anew.
REVISING = (T2M(0.5, "low_prob", 0.7, 2, 0.5, 6), T2M(0.3, "low_prob", 1.0, 1, 1.0, 4))


def view_of(tokens: list[int], probabilities: list[list[float]]) -> View:
    """One row whose block is open; each position has probabilities of tokens 0, 1 and 2."""
    ids = torch.tensor([tokens])
    logits = torch.full((1, len(tokens), 10), -torch.inf, dtype=torch.float64)
    logits[..., :3] = torch.tensor(probabilities, dtype=torch.float64).log()
    open_ = torch.ones_like(ids, dtype=torch.bool)
    return View(ids, Summary(logits), ids == MASK_ID, open_, 0, len(tokens), eos_ids=(2,))


def remasked(sampler: T2M, view: View, state: Revised | None = None) -> list[int]:
    decision, _ = sampler.step(view, sampler.init(view) if state is None else state)
    assert decision.remask is not None
    return columns(decision.remask)


def columns(where: Tensor) -> list[int]:
    return where[0].nonzero().flatten().tolist()


UNSURE = view_of(
    [0, 0, 0, 0, MASK_ID],
    [[0.1, 0.6, 0.3], [0.2, 0.7, 0.1], [0.5, 0.4, 0.1], [0.29, 0.3, 0.41], [0.9, 0.1, 0.0]],
)


def test_a_token_of_low_probability_is_doubtful() -> None:
    assert remasked(T2M(ratio=1.0), UNSURE) == [0, 1, 3]
    assert remasked(T2M(ratio=1.0, tau=0.1001), UNSURE) == [0]


def test_a_token_is_doubtful_if_another_one_is_likely_enough() -> None:
    assert remasked(T2M(strategy="t2t_remask", tau=0.4, ratio=1.0), UNSURE) == [0, 1, 3]
    assert remasked(T2M(strategy="t2t_remask", tau=0.65, ratio=1.0), UNSURE) == [1]


def test_a_token_is_doubtful_if_its_probability_fell() -> None:
    sampler = T2M(strategy="logit_diff", tau=0.25, ratio=1.0)
    before = torch.tensor([[0.3, 0.5, 0.9, 0.0, 0.0]], dtype=torch.float64)
    state = sampler.init(UNSURE)._replace(probability=before)
    assert remasked(sampler, UNSURE, state) == [1, 2]
    # Nothing fell if the step before had nothing to revise.
    assert remasked(sampler, UNSURE) == []


def test_at_most_a_share_is_re_masked_and_the_most_doubtful_first() -> None:
    assert remasked(T2M(ratio=0.5), UNSURE) == [0, 1]
    assert remasked(T2M(ratio=0.0), UNSURE) == [0]
    assert remasked(T2M(strategy="t2t_remask", ratio=0.5, tau=0.4), UNSURE) == [0, 1]


def test_the_leftmost_of_equal_scores_is_re_masked() -> None:
    view = view_of([0, 0, 0], [[0.1, 0.8, 0.1]] * 3)
    assert remasked(T2M(ratio=0.0), view) == [0]


def test_a_position_is_not_re_masked_more_often_than_allowed() -> None:
    state = T2M().init(UNSURE)
    state.remasks[0, 0] = 1
    assert remasked(T2M(ratio=1.0), UNSURE, state) == [1, 3]
    assert remasked(T2M(ratio=1.0, max_remasks=2), UNSURE, state) == [0, 1, 3]
    # Every position is [MASK] again: the counts begin anew.
    empty = view_of([MASK_ID] * 5, [[0.9, 0.1, 0.0]] * 5)
    _, after = T2M().step(empty, state)
    assert not after.remasks.any()


def test_a_block_ends_full_after_a_step_that_doubts_nothing() -> None:
    sure = view_of([0, 0], [[0.9, 0.1, 0.0]] * 2)
    decision, _ = T2M().step(sure, T2M().init(sure))
    assert decision.settle is not None
    assert columns(decision.settle) == [0, 1]
    half = view_of([0, MASK_ID], [[0.9, 0.1, 0.0]] * 2)
    for budget, settled in ((1, []), (0, [0, 1])):
        sampler = T2M(max_post_steps=budget)
        decision, _ = sampler.step(half, sampler.init(half))
        assert decision.settle is not None
        assert columns(decision.settle) == settled


def test_a_full_block_with_an_eos_ends_unrevised_unless_told_otherwise() -> None:
    view = view_of([0, MASK_ID], [[0.9, 0.1, 0.0], [0.1, 0.0, 0.9]])
    for stops, settled in ((True, [0, 1]), (False, [])):
        sampler = T2M(eos_early_stop=stops)
        decision, _ = sampler.step(view, sampler.init(view))
        assert decision.settle is not None
        assert columns(decision.settle) == settled
    given = replace(view, eligible=torch.tensor([[True, False]]), masked=torch.zeros(1, 2).bool())
    given = replace(given, tokens=torch.tensor([[0, 2]]))
    doubts = T2M(tau=1.0)
    decision, _ = doubts.step(given, doubts.init(given))
    assert decision.remask is not None
    assert columns(decision.remask) == [0]


class Remasks:
    """Observer: counts how often each position was re-masked, and the steps of each block."""

    def __init__(self) -> None:
        self.counts: dict[tuple[int, int], int] = {}
        self.steps: dict[tuple[int, int], int] = {}

    def __call__(self, event: StepEvent) -> None:
        again = event.after.masked & ~event.before.masked
        assert not (again & event.before.given).any()
        for row, told in enumerate(event.rows):
            block = told.request.index, told.opening.start
            self.steps[block] = self.steps.get(block, 0) + 1
            for at in again[row].nonzero().flatten().tolist():
                key = told.request.index, at
                self.counts[key] = self.counts.get(key, 0) + 1


def answer(sampler: T2M, family: str = "llada", **options: Any) -> Any:
    options = {"gen_length": 14, "block_length": 8, "stop_at_eos": False, **options}
    return decode(tiny(family), options.pop("prompts", PROMPTS), sampler, **options)


@pytest.mark.parametrize("sampler", REVISING, ids=repr)
@pytest.mark.parametrize("family", ["llada", "dream", "llada2_moe"])
def test_a_block_ends_full_within_the_promised_steps(sampler: T2M, family: str) -> None:
    seen = Remasks()
    out = answer(sampler, family, observers=[seen])
    assert seen.counts
    assert not (out.tokens == tiny(family).mask_id).any()
    assert max(seen.steps.values()) <= sampler.max_steps(8)
    most = sampler.max_remasks if sampler.ratio < 1.0 else sampler.max_post_steps
    assert max(seen.counts.values()) <= most


@pytest.mark.parametrize("sampler", REVISING, ids=repr)
def test_given_tokens_are_never_re_masked(sampler: T2M) -> None:
    mask = tiny("llada").mask_id
    template = [5, mask, 7, mask, 9, mask, 11, mask] + [mask, 3] * 3
    seen = Remasks()
    out = answer(sampler, templates=[template] * 3, observers=[seen])
    assert seen.counts
    given = [at for at, token in enumerate(template) if token != mask]
    assert all(row[given].tolist() == [template[at] for at in given] for row in out.tokens)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"threshold": 1.5}, "threshold must be a probability in \\[0, 1\\], got 1.5"),
        ({"strategy": "worst"}, 'strategy must be one of "low_prob", "t2t_remask", "logit_diff"'),
        ({"tau": -0.1}, "tau must be a probability"),
        ({"max_remasks": -1}, "max_remasks must be a whole number of re-masks, at least 0"),
        ({"ratio": 2.0}, "ratio must be a share"),
        ({"max_post_steps": 1.5}, "max_post_steps must be a whole number of steps"),
        ({"eos_early_stop": 1}, "eos_early_stop must be True or False, got 1"),
    ],
)
def test_a_wrong_argument_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        T2M(**options)


@dataclass(frozen=True)
class Restless(Sampler[None]):
    """Fills a block, and makes all of it [MASK] again."""

    @property
    def needs(self) -> frozenset[Fact]:
        return super().needs | {Fact.LOGITS_OF_COMMITTED}

    @property
    def gives(self) -> frozenset[Fact]:
        return frozenset()

    def step(self, view: View, state: None) -> tuple[Decision, None]:
        empty, filled = view.eligible & view.masked, view.eligible & ~view.masked
        return Decision(empty, settle=torch.zeros_like(empty), remask=filled), None


def test_a_sampler_that_re_masks_without_end_is_stopped() -> None:
    with pytest.raises(RuntimeError, match="promises to finish a block within 8 steps"):
        decode(tiny("llada"), PROMPTS, Restless(), gen_length=8, block_length=8)
