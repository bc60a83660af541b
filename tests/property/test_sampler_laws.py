"""Laws of every sampler, over random rows and over adversarial logits."""

import copy
from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest
import torch
from plugins_under_test import (
    FEW,
    INSTANCES,
    OF_NOISE,
    OF_ONE_BLOCK_LENGTH,
    one_of_each_kind,
)
from torch import Tensor

from samplers import (
    ALL_SAMPLERS,
    T2M,
    JointThresholdInDel,
    Learn2PD,
    MaskPredict,
    ReMDM,
    ReMDMLoop,
    Sampler,
    State,
    View,
    Wino,
    parse,
)
from samplers.facts import Fact
from samplers.logits.summary import Summary
from samplers.state import take_state
from samplers.testing import STYLES, PlayedStep, Style, play, settled_by

SEEDS = (1, 2)
# Every way a model may answer at temperature 0, and the usual one with noise.
PLAYS: tuple[tuple[Style, float], ...] = (*((style, 0.0) for style in STYLES), ("drifting", 1.3))

every_sampler = pytest.mark.parametrize("sampler", one_of_each_kind(INSTANCES))
every_rule = pytest.mark.parametrize("sampler", one_of_each_kind([*INSTANCES, *OF_NOISE]))


@cache
def turns(sampler: Sampler, style: Style, temperature: float = 0.0) -> list[PlayedStep[Any]]:
    return [
        turn for seed in SEEDS for turn in play(sampler, seed, style=style, temperature=temperature)
    ]


def all_turns(sampler: Sampler) -> list[PlayedStep[Any]]:
    return [turn for style, temperature in PLAYS for turn in turns(sampler, style, temperature)]


def revises(sampler: Sampler) -> bool:
    """Returns True if the steps of a sampler go on in a full block."""
    return Fact.ONE_STEP_A_FORWARD in sampler.needs


def tensors_in(state: State) -> list[Tensor]:
    if state is None:
        return []
    if isinstance(state, tuple):
        return [tensor for part in state for tensor in tensors_in(part)]
    return [state]


def assert_same_state(one: State, other: State) -> None:
    for ours, theirs in zip(tensors_in(one), tensors_in(other), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def assert_same_decision(decision: Any, view: View, turn: PlayedStep[Any], rows: Any = ...) -> None:
    """Compares with a turn's decision about all rows, or about some of them."""
    commit = turn.decision.commit[rows]
    assert torch.equal(decision.commit, commit)
    tokens = view.proposal if decision.tokens is None else decision.tokens
    assert torch.equal(tokens[commit], turn.written[rows][commit])
    for name in ("remask", "settle"):
        ours, theirs = getattr(decision, name), getattr(turn.decision, name)
        assert ours is theirs is None or torch.equal(ours, theirs[rows])


def test_every_sampler_is_under_test() -> None:
    under_test = {type(sampler) for sampler in (*INSTANCES, *OF_NOISE, *OF_ONE_BLOCK_LENGTH)}
    assert under_test == {*ALL_SAMPLERS}
    assert {type(sampler) for sampler in OF_ONE_BLOCK_LENGTH} == {Learn2PD}
    assert {*FEW} <= {*INSTANCES}


@every_sampler
def test_only_eligible_positions_are_committed_and_every_row_moves(sampler: Sampler) -> None:
    """A row moves if a position is committed or settled, or, in a rule that revises, re-masked."""
    idle_rows = 0
    for turn in all_turns(sampler):
        view, decision = turn.view, turn.decision
        busy = view.eligible.any(-1)
        idle_rows += int((~busy).sum())
        allowed = view.eligible if sampler.scope == "block" else view.masked
        assert not (decision.commit & ~allowed).any()
        moves = decision.commit | settled_by(decision)
        if decision.remask is not None and revises(sampler):
            moves = moves | decision.remask
        assert torch.equal(moves.any(-1), busy)
    assert idle_rows


@pytest.mark.parametrize("sampler", one_of_each_kind([*INSTANCES, *OF_NOISE, *OF_ONE_BLOCK_LENGTH]))
def test_a_row_is_decided_without_looking_at_its_batch_mates(sampler: Sampler) -> None:
    """Rows that have options of their own are those of the fuzzed engine."""
    width = OF_ONE_BLOCK_LENGTH.get(sampler, 7)
    for style, temperature in PLAYS:
        for turn in play(sampler, 1, style=style, temperature=temperature, width=width):
            for row in torch.arange(3)[:, None]:
                view, state = turn.view.take(row), take_state(turn.state, row)
                alone, next_state = sampler.step(view, state)
                assert_same_decision(alone, view, turn, row)
                after = tensors_in(take_state(turn.next_state, row))
                for one, other in zip(tensors_in(next_state), after, strict=True):
                    # A power in float32 depends on the shape in its last bit.
                    torch.testing.assert_close(one, other, equal_nan=True)


@every_sampler
def test_each_step_gains_at_least_one_token_over_all_that_is_masked_again(sampler: Sampler) -> None:
    num_remasked = 0
    for seed in SEEDS:
        gained = torch.zeros(3, dtype=torch.long)
        for step, turn in enumerate(play(sampler, seed, width=16), start=1):
            view, decision = turn.view, turn.decision
            gained += decision.commit.sum(-1)
            if decision.remask is not None:
                assert not (decision.remask & view.masked).any()
                gained -= decision.remask.sum(-1)
                num_remasked += int(decision.remask.sum())
            assert revises(sampler) or (gained >= step)[view.eligible.any(-1)].all()
    remasks = isinstance(sampler, T2M | JointThresholdInDel | Wino | ReMDM | ReMDMLoop)
    assert bool(num_remasked) == remasks or isinstance(sampler, MaskPredict)


@every_sampler
def test_no_excluded_token_is_written(sampler: Sampler) -> None:
    if isinstance(sampler, JointThresholdInDel):
        pytest.skip("A token that moves was proposed elsewhere.")
    for turn in all_turns(sampler):
        logits = turn.view.logits.gather(-1, turn.written[..., None]).squeeze(-1)
        assert logits[turn.decision.commit].isfinite().all()


def other_logits(view: View) -> View:
    """The view with a stranger's logits at committed positions."""
    strange = view.logits.flip(1).roll(1, -1).masked_fill(view.logits.isinf(), -torch.inf)
    logits = torch.where(view.masked[..., None], view.logits, strange)
    assert not torch.equal(logits, view.logits) or view.masked.all()
    return view.with_logits(logits)


def only_masked(view: View) -> View:
    """The view with the logits of masked positions alone, as the engine makes it."""
    most = int(view.masked.sum(-1).max())
    asked = view.masked.sort(dim=-1, descending=True, stable=True).indices[:, :most]
    logits = view.logits.gather(1, asked[..., None].expand(-1, -1, view.logits.shape[-1]))
    return replace(view, computed=Summary(logits, asked), reads_committed=False)


@every_sampler
def test_what_is_committed_is_read_only_by_those_who_say_so(sampler: Sampler) -> None:
    """The decisions of a whole block follow from the logits at masked positions."""
    if Fact.LOGITS_OF_COMMITTED in sampler.needs:
        pytest.skip("It says so.")
    for style, temperature in PLAYS:
        states: list[State] = [None, None]
        played = play(sampler, 1, style=style, temperature=temperature, width=16)
        for step, turn in enumerate(played):
            for number, view in enumerate((other_logits(turn.view), only_masked(turn.view))):
                state = sampler.init(view) if step == 0 else states[number]
                decision, states[number] = sampler.step(view, state)
                assert_same_decision(decision, view, turn)


@every_rule
def test_a_step_changes_nothing_it_was_given_and_says_the_same_again(sampler: Sampler) -> None:
    for style, temperature in (("drifting", 0.0), ("drifting", 1.3)):
        for turn in turns(sampler, style, temperature):
            given = {field.name: getattr(turn.view, field.name) for field in fields(View)}
            view, state = View(**copy.deepcopy(given)), copy.deepcopy(turn.state)
            decision, next_state = sampler.step(view, state)
            for name, value in given.items():
                if isinstance(value, Tensor):
                    assert torch.equal(getattr(view, name), value), name
            assert torch.equal(view.computed.logits, given["computed"].logits)
            assert_same_state(state, turn.state)
            assert_same_decision(decision, view, turn)
            assert_same_state(next_state, turn.next_state)


@every_rule
def test_a_block_ends_within_the_stated_number_of_steps(sampler: Sampler) -> None:
    for style in STYLES:
        for dtype in (torch.bfloat16, torch.float64):
            steps = list(play(sampler, 3, style=style, dtype=dtype))
            masks = steps[0].view.eligible.sum(-1).tolist()
            assert max(masks) > 1
            assert len(steps) <= max(sampler.max_steps(count) for count in masks)
            last = steps[-1]
            assert not (last.view.eligible & ~settled_by(last.decision)).any()


@every_sampler
def test_a_position_without_any_allowed_token_stops_no_other(sampler: Sampler) -> None:
    view = turns(sampler, "drifting")[0].view
    logits = view.logits.clone()
    hopeless = int(view.eligible[0].nonzero()[0])
    logits[0, hopeless] = -torch.inf
    view = view.with_logits(logits)
    decision, _ = sampler.step(view, sampler.init(view))
    decision.commit[0, hopeless] = False
    assert decision.commit[0].any()


# A random order knows no equals.
@pytest.mark.parametrize(
    "sampler",
    one_of_each_kind(
        one for one in INSTANCES if "random" not in repr(one) and not isinstance(one, ReMDM)
    ),
)
def test_the_leftmost_of_equals_is_committed(sampler: Sampler) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        turn = next(play(sampler, 3, style="saturated", dtype=dtype))
        confidence = turn.view.confidence[turn.view.eligible]
        assert len(confidence) > 2
        assert (confidence == 1.0).all()
        leftmost = turn.view.eligible & (turn.view.eligible.cumsum(-1) == 1)
        assert turn.decision.commit[leftmost].all()


@every_rule
def test_the_repr_is_the_configuration(sampler: Sampler) -> None:
    assert parse(repr(sampler)) == sampler


@every_sampler
def test_a_vanishing_temperature_decides_as_temperature_zero(sampler: Sampler) -> None:
    cold = turns(sampler, "drifting", 1e-9)
    for one, other in zip(turns(sampler, "drifting"), cold, strict=True):
        assert_same_decision(other.decision, other.view, one)
    noisy = turns(sampler, "drifting", 1.3)
    assert any(not torch.equal(turn.view.proposal, turn.view.logits.argmax(-1)) for turn in noisy)
