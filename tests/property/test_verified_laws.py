"""Self-verification changes nothing but the number of forwards, whatever it is combined with."""

from typing import Any, NamedTuple

import pytest
import torch
from plugins_under_test import VERIFIABLE, plugin
from tiny_models import FAMILIES, tiny
from toys import DriftingModel

from dllm_decode import (
    CachePolicy,
    DecodeOutput,
    DualCache,
    FreeCache,
    NoCache,
    NoVerifier,
    PrefixCache,
    SelfVerify,
    StepEvent,
    Trace,
    decode,
)
from dllm_decode.core.observers import Revision
from samplers import CreditDecoding, FixedSchedule, Klass, Less, LocalLeap, Prophet, Sampler

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10]]
CACHES: tuple[CachePolicy, ...] = (NoCache(), PrefixCache(), DualCache(), FreeCache("clean"))


SAMPLER = pytest.mark.parametrize("sampler", VERIFIABLE, ids=repr)


class History(NamedTuple):
    out: DecodeOutput
    steps: list[list[int]]
    confidences: torch.Tensor
    revisions: list[list[Revision]]


def history(model: Any, sampler: Sampler, verifier: Any, prompts: Any, **options: Any) -> History:
    trace = Trace()
    out = decode(model, prompts, sampler, verifier=verifier, observers=[trace], **options)
    rows = sorted(trace.steps)
    return History(
        out,
        [trace.steps[row].tolist() for row in rows],
        torch.stack([trace.confidences[row] for row in rows]),
        [trace.revisions[row] for row in rows],
    )


def assert_same(plain: History, verified: History, what: object) -> int:
    """Fails unless all is the same but the forwards; returns how many were saved."""
    assert torch.equal(plain.out.tokens, verified.out.tokens), what
    assert plain.steps == verified.steps, what
    assert [[one[:3] for one in row] for row in plain.revisions] == [
        [one[:3] for one in row] for row in verified.revisions
    ], what
    torch.testing.assert_close(
        plain.confidences, verified.confidences, equal_nan=True, rtol=1e-6, atol=1e-9
    )
    assert (verified.out.nfe <= plain.out.nfe).all(), what
    assert verified.out.forwards <= plain.out.forwards, what
    return int((plain.out.nfe - verified.out.nfe).sum())


@pytest.mark.exhaustive(8)
@SAMPLER
def test_self_verification_changes_neither_tokens_nor_order(sampler: Sampler) -> None:
    for temperature, eos_ids in ((0.0, (22,)), (0.7, (3, 7, 11, 15))):
        model = DriftingModel(eos_ids=eos_ids, peak=12.0)
        options = {"gen_length": 8, "block_length": 6, "temperature": temperature, "seed": 1}
        plain = history(model, sampler, NoVerifier(), PROMPTS, **options)
        verified = history(model, sampler, SelfVerify(4), PROMPTS, **options)
        assert_same(plain, verified, (sampler, temperature))


def test_most_samplers_have_drafts_accepted_and_drafts_rejected() -> None:
    model, saved, short = DriftingModel(peak=12.0), 0, 0
    options: Any = {"gen_length": 8, "block_length": 8, "stop_at_eos": False}
    for sampler in VERIFIABLE:
        plain = decode(model, PROMPTS, sampler, **options)
        out = decode(model, PROMPTS, sampler, verifier=SelfVerify(4), **options)
        saved += bool((out.nfe < plain.nfe).any())
        # Had no draft been rejected, four states a forward would have been enough.
        short += bool((out.nfe > (plain.nfe / 4).ceil() + 1).any())
    assert saved > len(VERIFIABLE) / 2
    assert short > len(VERIFIABLE) / 2


@pytest.mark.exhaustive(6)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("evaluate", ["batch", "tree"])
@pytest.mark.parametrize("cache", [*CACHES, DualCache(before=2, after=3)], ids=repr)
def test_self_verification_reproduces_plain_decoding_with_the_same_cache(
    family: str, cache: CachePolicy, evaluate: Any
) -> None:
    prompts = [[17, 40, 41, 300, 5, 77], [99], [7, 7, 250, 31, 12, 13, 14, 444, 90]]
    saved = 0
    for sampler, temperature in ((FixedSchedule(8), 0.0), (CreditDecoding(LocalLeap()), 0.8)):
        options = {
            "gen_length": 14, "block_length": 8, "temperature": temperature, "cache": cache,
            "stop_at_eos": False,
        }  # fmt: skip
        plain = history(tiny(family), sampler, NoVerifier(), prompts, **options)
        verifier = SelfVerify(4, evaluate)
        verified = history(tiny(family), sampler, verifier, prompts, **options)
        saved += assert_same(plain, verified, (sampler, cache))
    assert saved > 0


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
        plain = history(model, sampler, NoVerifier(), PROMPTS, **options)
        anew = history(model, forgetful(sampler), NoVerifier(), PROMPTS, **options)
        if plain.steps != anew.steps:
            return
    pytest.fail("The state decides nothing.")
