"""Steps that are verified; that they are those of plain decoding is a law of the fuzzed engine."""

from typing import Any

import pytest
import torch
from plugins_under_test import plugin
from toys import DriftingModel

from dllm_decode import SelfVerify, StepEvent, Trace, decode
from samplers import CreditDecoding, FixedSchedule, Klass, Less, LocalLeap, Prophet, Sampler

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10]]


def test_every_step_is_reported_with_the_logits_it_was_taken_on() -> None:
    events: list[StepEvent] = []
    out = decode(
        DriftingModel(), PROMPTS, FixedSchedule(6), verifier=SelfVerify(4), gen_length=12,
        block_length=6, stop_at_eos=False, observers=[events.append],
    )  # fmt: skip
    steps = torch.zeros(3, dtype=torch.long)
    for event in events:
        columns = event.columns
        assert torch.equal(event.view.tokens, event.before.tokens.gather(1, columns))
        committed = event.before.masked & ~event.after.masked
        assert (committed.sum(-1) == 1).all()
        in_view = committed.gather(1, columns)
        chosen = torch.where(in_view, event.view.proposal, -1).amax(-1)
        assert torch.equal(chosen, torch.where(committed, event.after.tokens, -1).amax(-1))
        steps[event.requests] += 1
    assert steps.tolist() == [12, 12, 12]
    assert events[-1].forwards == out.forwards
    assert len({len(event.before) for event in events}) > 1, "no row ever waited for another"
    assert len({event.forwards for event in events}) < len(events)


def forgetful(base: Sampler) -> Any:
    """Returns a sampler that starts another sampler's state anew at every step."""
    return plugin(
        Sampler, scope=base.scope, leave_one_out=base.leave_one_out, needs=base.needs,
        gives=base.gives, max_steps=lambda self, num_masks: 10 * num_masks,
        step=lambda self, view, state: (base.step(view, base.init(view))[0], None),
    )  # fmt: skip


@pytest.mark.parametrize(
    "sampler",
    [
        Klass(0.42, 0.5, 1, 13), Less(0.3, 0.1, 1, 2), CreditDecoding(LocalLeap()),
        FixedSchedule(3), Prophet(FixedSchedule(3)),
    ],
    ids=repr,
)  # fmt: skip
def test_every_state_that_is_verified_decides_something(sampler: Sampler) -> None:
    """A state that was lost without a trace showed in no law: none had one that mattered."""
    for drift in (0.05, 0.1, 0.35):
        model = DriftingModel(peak=12.0, drift=drift)
        options: Any = {"gen_length": 12, "block_length": 12, "stop_at_eos": False}
        plain, anew = Trace(), Trace()
        decode(model, PROMPTS, sampler, observers=[plain], **options)
        decode(model, PROMPTS, forgetful(sampler), observers=[anew], **options)
        if any(not torch.equal(plain.steps[row], anew.steps[row]) for row in range(3)):
            return
    pytest.fail("The state decides nothing.")
