"""Laws of every sampler, over random rows and over adversarial logits."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from plugins_under_test import FEW, INSTANCES, OF_NOISE, OF_ONE_BLOCK_LENGTH, one_of_each_kind

from samplers import (
    ALL_SAMPLERS,
    T2M,
    JointThresholdInDel,
    Learn2PD,
    ReMDM,
    ReMDMLoop,
    Sampler,
    SamplerState,
    View,
    Wino,
    parse,
)
from samplers.facts import Fact
from samplers.logits.summary import Summary
from samplers.testing import (
    LAWS,
    STYLES,
    PlayedStep,
    Style,
    check_rule,
    decides_rows_alone,
    ends_in_time,
    is_pure,
    play,
    require_same,
    writes_possible_tokens,
)

SEEDS = (1, 2)
# Every way a model may answer at temperature 0, and the usual one with noise.
PLAYS: tuple[tuple[Style, float], ...] = (*((style, 0.0) for style in STYLES), ("drifting", 1.3))

every_sampler = pytest.mark.parametrize("sampler", one_of_each_kind(INSTANCES))
every_rule = pytest.mark.parametrize("sampler", one_of_each_kind([*INSTANCES, *OF_NOISE]))


@cache
def played_steps(sampler: Sampler, style: Style, temperature: float = 0.0) -> list[PlayedStep[Any]]:
    plays = (play(sampler, seed, style=style, temperature=temperature) for seed in SEEDS)
    return [played for steps in plays for played in steps]


def revises(sampler: Sampler) -> bool:
    """Returns True if the steps of a sampler go on in a full block."""
    return Fact.ONE_STEP_A_FORWARD in sampler.needs


def test_every_sampler_is_under_test() -> None:
    under_test = {type(sampler) for sampler in (*INSTANCES, *OF_NOISE, *OF_ONE_BLOCK_LENGTH)}
    assert under_test == {*ALL_SAMPLERS}
    assert {type(sampler) for sampler in OF_ONE_BLOCK_LENGTH} == {Learn2PD}
    assert {*FEW} <= {*INSTANCES}


@pytest.mark.parametrize("sampler", one_of_each_kind([*INSTANCES, *OF_ONE_BLOCK_LENGTH]))
def test_our_rules_keep_the_laws_of_all_rules(
    sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(sampler, JointThresholdInDel):
        # A token that moves was proposed elsewhere.
        laws = tuple(law for law in LAWS if law is not writes_possible_tokens)
        monkeypatch.setattr("samplers.testing.LAWS", laws)
    check_rule(sampler, width=OF_ONE_BLOCK_LENGTH.get(sampler, 7))


@pytest.mark.parametrize("sampler", one_of_each_kind(OF_NOISE))
def test_rules_for_noise_decide_rows_alone_and_change_nothing(sampler: Sampler) -> None:
    assert parse(repr(sampler)) == sampler
    for style, temperature in PLAYS:
        for played in played_steps(sampler, style, temperature):
            decides_rows_alone(played, sampler)
            is_pure(played, sampler)


@every_sampler
def test_each_step_gains_at_least_one_token_over_all_that_is_masked_again(sampler: Sampler) -> None:
    num_remasked = 0
    for seed in SEEDS:
        gained = torch.zeros(3, dtype=torch.long)
        for step, played in enumerate(play(sampler, seed, width=16), start=1):
            view, decision = played.view, played.decision
            gained += decision.commit.sum(-1)
            if decision.remask is not None:
                assert not (decision.remask & view.masked).any()
                gained -= decision.remask.sum(-1)
                num_remasked += int(decision.remask.sum())
            assert revises(sampler) or (gained >= step)[view.eligible.any(-1)].all()
    remasks = isinstance(sampler, T2M | JointThresholdInDel | Wino | ReMDM | ReMDMLoop)
    assert num_remasked or not remasks
    assert revises(sampler) or not num_remasked


def other_logits(view: View) -> View:
    """Returns the view with other logits at committed positions."""
    strange = view.logits.flip(1).roll(1, -1).masked_fill(view.logits.isinf(), -torch.inf)
    logits = torch.where(view.masked[..., None], view.logits, strange)
    assert not torch.equal(logits, view.logits) or view.masked.all()
    return view.with_logits(logits)


def only_masked(view: View) -> View:
    """Returns the view with the logits of masked positions alone, as the engine makes it."""
    most = int(view.masked.sum(-1).max())
    columns = view.masked.sort(dim=-1, descending=True, stable=True).indices[:, :most]
    logits = view.logits.gather(1, columns[..., None].expand(-1, -1, view.logits.shape[-1]))
    return replace(view, summary=Summary(logits, columns), reads_committed=False)


@every_sampler
def test_what_is_committed_is_read_only_by_those_who_say_so(sampler: Sampler) -> None:
    """The decisions of a whole block follow from the logits at masked positions."""
    if Fact.LOGITS_OF_COMMITTED in sampler.needs:
        pytest.skip("It says so.")
    for style, temperature in PLAYS:
        states: list[SamplerState] = [None, None]
        block = play(sampler, 1, style=style, temperature=temperature, width=16)
        for step, played in enumerate(block):
            for number, view in enumerate((other_logits(played.view), only_masked(played.view))):
                state = sampler.init(view) if step == 0 else states[number]
                decision, states[number] = sampler.step(view, state)
                require_same(decision, view, played, ..., "it reads what is committed")


@every_rule
def test_a_block_ends_within_the_stated_number_of_steps(sampler: Sampler) -> None:
    for style in STYLES:
        for dtype in (torch.bfloat16, torch.float64):
            ends_in_time(sampler, style, 3, dtype)


@every_sampler
def test_a_position_without_any_allowed_token_stops_no_other(sampler: Sampler) -> None:
    view = played_steps(sampler, "drifting")[0].view
    logits = view.logits.clone()
    hopeless = int(view.eligible[0].nonzero()[0])
    logits[0, hopeless] = -torch.inf
    view = view.with_logits(logits)
    decision, _ = sampler.step(view, sampler.init(view))
    decision.commit[0, hopeless] = False
    assert decision.commit[0].any()


# A random order has no ties.
@pytest.mark.parametrize(
    "sampler",
    one_of_each_kind(
        sampler
        for sampler in INSTANCES
        if "random" not in repr(sampler) and not isinstance(sampler, ReMDM)
    ),
)
def test_the_leftmost_of_equals_is_committed(sampler: Sampler) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        played = next(play(sampler, 3, style="saturated", dtype=dtype))
        confidence = played.view.confidence[played.view.eligible]
        assert len(confidence) > 2
        assert (confidence == 1.0).all()
        leftmost = played.view.eligible & (played.view.eligible.cumsum(-1) == 1)
        assert played.decision.commit[leftmost].all()


@every_sampler
def test_a_vanishing_temperature_decides_as_temperature_zero(sampler: Sampler) -> None:
    cold = played_steps(sampler, "drifting", 1e-9)
    for greedy_step, cold_step in zip(played_steps(sampler, "drifting"), cold, strict=True):
        decision, view = cold_step.decision, cold_step.view
        require_same(decision, view, greedy_step, ..., "it decides otherwise")
    noisy = [played.view for played in played_steps(sampler, "drifting", 1.3)]
    assert any(not torch.equal(view.proposal, view.logits.argmax(-1)) for view in noisy)
