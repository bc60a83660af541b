"""Steps that are verified; that they are those of plain decoding is a law of the fuzzed engine."""

import torch
from toys import DriftingModel

from dllm_decode import SelfVerify, StepEvent, decode
from samplers import FixedSchedule

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
