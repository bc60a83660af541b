"""Drafts that verifiers count as accepted are those that observers saw committed."""

from collections import defaultdict
from typing import Any

import pytest
import torch
from toys import DriftingModel, HashModel, Knowing, answers_of, tiny_target

from dllm_decode import DecodeOutput, Gain, Gains, StepEvent, Trace, decode
from dllm_decode.verify import (
    ARVerify,
    DraftLength,
    Guided,
    NoVerifier,
    PathSearch,
    SelfVerify,
    Verifier,
)
from samplers import ConfidenceThreshold, CreditDecoding, FixedSchedule, LocalLeap, Sampler

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10]]
SAMPLERS = (FixedSchedule(12), FixedSchedule(6, "random"), ConfidenceThreshold(0.4),
            CreditDecoding(LocalLeap()))  # fmt: skip


def counted(
    model: Any, sampler: Sampler, verifier: Verifier, prompts: Any = PROMPTS, **options: Any
) -> tuple[DecodeOutput, dict[int, Gain], list[StepEvent]]:
    gains, events = Gains(), list[StepEvent]()
    options = {"gen_length": 12, "block_length": 6} | options
    out = decode(
        model, prompts, sampler, verifier=verifier, observers=[gains, events.append], **options
    )
    return out, gains.by_row(), events


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_a_self_verified_draft_is_accepted_if_the_sampler_goes_on_from_it(sampler: Sampler) -> None:
    drafted = accepted = 0
    for temperature in (0.0, 1.0):
        out, gains, events = counted(
            DriftingModel(peak=12.0), sampler, SelfVerify(4), temperature=temperature,
            stop_at_eos=False,
        )  # fmt: skip
        steps_of: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for event in events:
            counts = (event.before.masked & ~event.after.masked).sum(-1)
            # A row's forwards are told apart by the number of columns computed so far.
            for row, forward, count in torch.stack(
                [event.request_indices, event.query_positions, counts], 1
            ).tolist():
                steps_of[row][forward].append(count)
        for row, forwards in steps_of.items():
            # Every step of a forward but the last led to a state that had been drafted.
            assert out.accepted[row] == sum(sum(steps[:-1]) for steps in forwards.values())
            assert gains[row].per_forward == [sum(steps) for steps in forwards.values()]
            assert gains[row].committed == 12
            assert len(gains[row].per_forward) == out.nfe[row]
        assert (out.accepted <= out.drafted).all()
        drafted, accepted = drafted + int(out.drafted.sum()), accepted + int(out.accepted.sum())
    assert 0 < accepted < drafted


def test_drafts_that_cannot_be_wrong_are_all_accepted() -> None:
    """The first forward looks at one state, later ones at four; a finished state needs no look."""
    options: dict[str, Any] = {
        "block_length": 12, "stop_at_eos": False, "templates": [[], [5] * 3, [6, 7]],
    }  # fmt: skip
    out, gains, _ = counted(DriftingModel(drift=0.0), FixedSchedule(12), SelfVerify(4), **options)
    assert gains == {0: Gain([1, 4, 4, 3], 12), 1: Gain([1, 4, 4], 9), 2: Gain([1, 4, 4, 1], 10)}
    assert out.drafted.tolist() == out.accepted.tolist() == [8, 6, 6]


def test_a_target_accepts_up_to_the_first_wrong_token_and_adds_its_own() -> None:
    target, prompts = tiny_target(), [[1, 3], [3, 4], [9, 1]]
    target.eos_ids = (23,)
    answers = answers_of(target, prompts, 12, banned=(22, 23))
    by_prompt = dict(zip(map(tuple, prompts), answers, strict=True))
    # Every third token is drafted wrong, from the third on.
    model = Knowing(answers=by_prompt, wrong_every=3, banned_ids=(22,), drift=1.0)
    verifier = ARVerify(target, DraftLength(8, 8), PathSearch(width=1, weight=1.0))
    out, gains, _ = counted(model, FixedSchedule(4), verifier, prompts)
    assert out.tokens.tolist() == answers
    assert gains == dict.fromkeys(range(3), Gain([3, 3, 3, 3], 12))
    # Drafts of 8, 8, 6 and 3 tokens: those that were left.
    assert out.drafted.tolist() == [25] * 3
    assert out.accepted.tolist() == [8] * 3
    assert out.target_nfe.tolist() == [4] * 3


@pytest.mark.parametrize("verifier", [NoVerifier(), SelfVerify(3), Guided(tiny_target())])
def test_gains_add_up_to_what_the_trace_saw_committed(verifier: Verifier) -> None:
    trace, gains, ended = Trace(), Gains(), 0
    out = decode(
        HashModel(eos_ids=tuple(range(0, 22, 4))), PROMPTS, FixedSchedule(6), verifier=verifier,
        gen_length=12, block_length=6, observers=[trace, gains],
    )  # fmt: skip
    for row, gain in gains.by_row().items():
        assert gain.committed == sum(gain.per_forward) == int((trace.steps[row] >= 0).sum())
        assert len(gain.per_forward) <= int(out.nfe[row])
        ended += gain.committed < 12
    assert ended > 0, "no row ended before its last position"
    if isinstance(verifier, NoVerifier):
        assert out.drafted.tolist() == out.accepted.tolist() == [0, 0, 0]


def test_every_step_is_reported_with_the_logits_it_was_taken_on() -> None:
    out, _, events = counted(DriftingModel(), FixedSchedule(6), SelfVerify(4), stop_at_eos=False)
    steps = torch.zeros(3, dtype=torch.long)
    for event in events:
        columns = event.columns
        assert torch.equal(event.view.tokens, event.before.tokens.gather(1, columns))
        committed = event.before.masked & ~event.after.masked
        assert (committed.sum(-1) == 1).all()
        in_view = committed.gather(1, columns)
        chosen = torch.where(in_view, event.view.proposal, -1).amax(-1)
        assert torch.equal(chosen, torch.where(committed, event.after.tokens, -1).amax(-1))
        steps[event.request_indices] += 1
    assert steps.tolist() == [12, 12, 12]
    assert events[-1].forwards == out.forwards
    assert len({len(event.before) for event in events}) > 1, "no row ever waited for another"
    assert len({event.forwards for event in events}) < len(events)
