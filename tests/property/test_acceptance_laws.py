"""Drafts that verifiers count as accepted are those that observers saw committed."""

from collections import Counter, defaultdict
from typing import Any

import pytest
from toys import DriftingModel, HashModel, Knowing, answers_of, tiny_target

from dllm_decode import CausalTarget, DecodeOutput, Gain, Gains, StepEvent, Trace, decode
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
ARGMAX = PathSearch(width=1, weight=1.0)
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


def by_forward(events: list[StepEvent]) -> dict[int, dict[int, list[int]]]:
    """Counts the tokens of each step, by row and forward."""
    found: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for event in events:
        committed = (event.before.masked & ~event.after.masked).sum(-1).tolist()
        # Columns computed so far tell a row's forwards apart.
        forwards = event.query_positions.tolist()
        for row, forward, count in zip(event.requests.tolist(), forwards, committed, strict=True):
            found[row][forward].append(count)
    return found


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_a_self_verified_draft_is_accepted_if_the_sampler_goes_on_from_it(sampler: Sampler) -> None:
    drafted = accepted = 0
    for temperature in (0.0, 1.0):
        out, gains, events = counted(
            DriftingModel(peak=12.0), sampler, SelfVerify(4), temperature=temperature,
            stop_at_eos=False,
        )  # fmt: skip
        for row, forwards in by_forward(events).items():
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


# Every third token is drafted wrong, from the third on.
KNOWN = [[1, 3], [3, 4], [9, 1]]


def knowing(target: CausalTarget) -> tuple[Knowing, list[list[int]]]:
    """Returns a model that drafts the target's answers, and these."""
    target.eos_ids = (23,)
    answers = answers_of(target, KNOWN, 12, banned=(22, 23))
    by_prompt = dict(zip(map(tuple, KNOWN), answers, strict=True))
    return Knowing(answers=by_prompt, wrong_every=3, banned_ids=(22,), drift=1.0), answers


def test_a_target_accepts_up_to_the_first_wrong_token_and_adds_its_own() -> None:
    target = tiny_target()
    model, answers = knowing(target)
    verifier = ARVerify(target, DraftLength(8, 8), ARGMAX)
    out, gains, _ = counted(model, FixedSchedule(4), verifier, KNOWN)
    assert out.tokens.tolist() == answers
    for row in range(3):
        assert gains[row] == Gain([3, 3, 3, 3], 12)
    # Drafts of 8, 8, 6 and 3 tokens: those that were left.
    assert out.drafted.tolist() == [25] * 3
    assert out.accepted.tolist() == [8] * 3
    assert out.target_nfe.tolist() == [4] * 3


def test_guided_commits_what_is_accepted_or_one_token() -> None:
    model, _ = knowing(tiny_target())
    seen = Counter[bool]()
    for top_k, threshold in ((1, 0.0), (24, 0.0), (1, 0.999)):
        verifier = Guided(tiny_target(), 8, top_k=top_k, threshold=threshold)
        out, gains, _ = counted(model, FixedSchedule(4), verifier, KNOWN, stop_at_eos=False)
        for row in range(3):
            forced = sum(gains[row].per_forward) - int(out.accepted[row])
            assert 0 <= forced <= gains[row].per_forward.count(1)
            assert out.accepted[row] <= out.drafted[row]
            seen[forced > 0] += 1
        if top_k == 24:
            assert gains[0] == Gain([8, 4], 12)
            assert out.accepted.tolist() == out.drafted.tolist() == [12] * 3
        if threshold:
            assert gains[0] == Gain([1] * 12, 12)
            assert out.accepted.tolist() == [0] * 3
    assert min(seen[True], seen[False]) > 0


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
