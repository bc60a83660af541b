"""Token editing: JointThreshold, and what the engine makes of a decision that edits."""

from typing import Any

import torch
from tiny_models import tiny

from dllm_decode import StepEvent, Trace, decode
from samplers import ConfidenceThreshold, JointThreshold, Sampler

PROMPTS = [[17, 40, 41, 300, 5, 77], [99], [7, 7, 250, 31, 12, 13, 14, 444, 90]]
SPEED = JointThreshold(0.5, 0.0, 5)


def answer(sampler: Sampler, family: str = "llada", **options: Any) -> Any:
    options = {"gen_length": 14, "block_length": 8, "stop_at_eos": False, **options}
    return decode(tiny(family), options.pop("prompts", PROMPTS), sampler, **options)


class Edited:
    """Observer: counts edits, and checks that given tokens and masks are no part of them."""

    def __init__(self) -> None:
        self.num = 0
        self.steps: dict[tuple[int, int], int] = {}

    def __call__(self, event: StepEvent) -> None:
        before, after = event.before, event.after
        edited = ~before.masked & (before.tokens != after.tokens)
        # Tokens that were filled in when a row ended are no edits.
        is_cut = [row.config.stop_at_eos or row.unsettled < row.answer_end for row in event.rows]
        edited &= ~(event.ended & torch.tensor(is_cut))[:, None]
        assert not (edited & before.given).any()
        assert not (edited & after.masked).any()
        self.num += int(edited.sum())
        for number, row in enumerate(event.rows):
            assert not edited[number, : row.opening.start].any()
            key = row.request.index, row.opening.start - row.prompt_length
            self.steps[key] = self.steps.get(key, 0) + 1


def test_tokens_are_edited_within_the_stated_bound() -> None:
    edited = Edited()
    out = answer(SPEED, observers=[edited])
    assert edited.num
    assert out.nfe.sum() == sum(edited.steps.values())
    for (_, start), steps in edited.steps.items():
        assert steps <= SPEED.max_steps(min(8, 14 - start))
    assert max(edited.steps.values()) > SPEED.max_edit_steps


def test_without_edits_it_is_the_confidence_threshold() -> None:
    plain = answer(ConfidenceThreshold(0.6))
    joint = answer(JointThreshold(0.6, 1.0, 4))
    assert torch.equal(joint.tokens, plain.tokens)
    # A full block is looked at once more: nothing is found to edit.
    assert torch.equal(joint.nfe, plain.nfe + 2)
    assert torch.equal(answer(JointThreshold(0.6, 1.0, 0)).nfe, plain.nfe)


def test_a_trace_shows_an_edit_as_a_revision() -> None:
    trace, edited = Trace(), Edited()
    out = answer(SPEED, observers=[trace, edited])
    assert sum(map(len, trace.revisions.values())) == edited.num
    for row in range(3):
        assert (trace.steps[row] >= 0).all()
        assert trace.rounds[row] == out.nfe[row]
