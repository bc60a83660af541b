"""T2M: which tokens are doubtful, how many are re-masked, and how a block ends."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from plugins_under_test import view_with
from tiny_models import tiny
from torch import Tensor

from dllm_decode import StepEvent, decode
from samplers import T2M, View
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
    all_open = torch.ones_like(ids, dtype=torch.bool)
    return view_with(
        logits, tokens=ids, masked=ids == MASK_ID, eligible=all_open, eos_ids=(2,)
    )  # fmt: skip


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
@pytest.mark.parametrize("family", ["llada", "llada2_moe"])
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
