"""What verifiers say of their drafts is what observers count."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from toys import DriftingModel, HashModel, greedy, tiny_llama, tiny_target

from dllm_decode import (
    ARVerify,
    DecodeOutput,
    DraftLength,
    Gain,
    Gains,
    Guided,
    NoVerifier,
    PathSearch,
    SelfVerify,
    StepEvent,
    Trace,
    Verifier,
    decode,
)
from dllm_decode.models.base import ForwardInputs
from samplers import ConfidenceThreshold, CreditDecoding, FixedSchedule, LocalLeap, Sampler

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10]]
ARGMAX = PathSearch(width=1, weight=1.0)
SAMPLERS = (FixedSchedule(12), FixedSchedule(6, "random"), ConfidenceThreshold(0.4),
            CreditDecoding(LocalLeap()))  # fmt: skip


@dataclass
class Coached(HashModel):
    """Drafts the answer of a target to prompts of two tokens, but every third token is wrong.

    Attributes:
        answers: By the prompt's first token.
    """

    answers: Tensor = field(default_factory=lambda: torch.zeros(0, 0))

    def predict(self, inputs: ForwardInputs) -> Tensor:
        logits = super().predict(inputs)
        at = inputs.positions.gather(1, inputs.wanted) - 2
        inside = (at >= 0) & (at < self.answers.shape[1])
        right = self.answers[inputs.tokens[:, 0]].gather(1, at.clamp(0, self.answers.shape[1] - 1))
        said = torch.where(at % 3 == 2, (right + 1) % 22, right)
        told = torch.nn.functional.one_hot(said, self.vocab_size) * inside[..., None]
        return logits + 20.0 * told


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


def coached(prompts: list[list[int]], gen_length: int) -> tuple[Coached, list[list[int]]]:
    stops = (23,)
    answers = [
        greedy(tiny_llama(), prompt, gen_length=gen_length, stops=stops, banned=(22, 23))
        for prompt in prompts
    ]
    table = torch.zeros(24, gen_length, dtype=torch.long)
    for prompt, answer in zip(prompts, answers, strict=True):
        table[prompt[0]] = torch.tensor(answer)
    return Coached(answers=table, banned_ids=(22,)), answers


def test_a_target_accepts_up_to_the_first_wrong_token_and_adds_its_own() -> None:
    prompts = [[1, 2], [4, 4], [9, 3]]
    model, answers = coached(prompts, 12)
    verifier = ARVerify(tiny_target(), DraftLength(8, 8), ARGMAX)
    out, gains, _ = counted(model, FixedSchedule(4), verifier, prompts)
    assert out.tokens.tolist() == answers
    for row in range(3):
        assert gains[row] == Gain([3, 3, 3, 3], 12)
    # Drafts of 8, 8, 6 and 3 tokens: those that were left.
    assert out.drafted.tolist() == [25] * 3
    assert out.accepted.tolist() == [8] * 3
    assert out.target_nfe.tolist() == [4] * 3


def test_guided_commits_what_is_accepted_or_one_token() -> None:
    prompts = [[1, 2], [4, 4], [9, 3]]
    model, _ = coached(prompts, 12)
    seen = Counter[bool]()
    for top_k, threshold in ((1, 0.0), (24, 0.0), (1, 0.999)):
        verifier = Guided(tiny_target(), 8, top_k=top_k, threshold=threshold)
        out, gains, _ = counted(model, FixedSchedule(4), verifier, prompts, stop_at_eos=False)
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


@pytest.mark.parametrize(
    "verifier", [NoVerifier(), SelfVerify(3), ARVerify(tiny_target()), Guided(tiny_target())],
    ids=["none", "self", "causal", "guided"],
)  # fmt: skip
def test_gains_add_up_to_what_the_trace_saw_committed(verifier: Verifier) -> None:
    ended = 0
    for sampler in (FixedSchedule(6), ConfidenceThreshold(0.4)):
        trace = Trace()
        gains = Gains()
        target_like = HashModel(eos_ids=tuple(range(0, 22, 4)))
        out = decode(
            target_like, PROMPTS, sampler, verifier=verifier, gen_length=12, block_length=6,
            observers=[trace, gains],
        )  # fmt: skip
        for row, gain in gains.by_row().items():
            assert gain.committed == sum(gain.per_forward) == int((trace.steps[row] >= 0).sum())
            assert len(gain.per_forward) <= int(out.nfe[row])
            ended += gain.committed < 12
    if not isinstance(verifier, ARVerify):
        assert ended > 0, "no row ended before its last position"
    if isinstance(verifier, NoVerifier):
        assert out.drafted.tolist() == out.accepted.tolist() == [0, 0, 0]
