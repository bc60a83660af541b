"""A plug-in that breaks its contract is named, at the first step that shows it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jaxtyping
import pytest
import torch
from plugins_under_test import plugin
from tiny_models import FAMILIES, tiny
from toys import HashModel

from dllm_decode import (
    BlockSchedule,
    CachePolicy,
    DecodeOutput,
    DualCache,
    NoVerifier,
    SelfVerify,
    decode,
)
from dllm_decode.core.columns import columns
from dllm_decode.core.rows import Opening
from samplers import ConfidenceThreshold, Decision, FixedSchedule, Sampler, View
from samplers.facts import Fact

PROMPTS = [[1, 2, 3], [4]]
NO_FACT: frozenset[Fact] = frozenset()
COMMITTED = frozenset({Fact.LOGITS_OF_COMMITTED})
THRESHOLD = ConfidenceThreshold(0.9)


@pytest.fixture(autouse=True)
def no_checks_of_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switches off the checks of types, which users do not have and which would be first."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def run(sampler: Sampler = THRESHOLD, model: Any = None, **options: Any) -> DecodeOutput:
    options = {"gen_length": 8, "block_length": 4, "stop_at_eos": False, **options}
    return decode(model or HashModel(), PROMPTS, sampler, **options)


# Samplers


def rule(decide: Callable[[View], Any], **members: Any) -> Any:
    """Returns a sampler without a state."""
    return plugin(Sampler, step=lambda self, view, state: (decide(view), state), **members)


def everything(view: View, token: int) -> Decision:
    return Decision(torch.ones_like(view.eligible), tokens=torch.full_like(view.tokens, token))


def first_of(view: View) -> torch.Tensor:
    return view.eligible & (view.eligible.cumsum(-1) == 1)


REVISES: Any = {"gives": NO_FACT, "needs": COMMITTED}
NEVER = lambda view: Decision(torch.zeros_like(view.eligible))  # noqa: E731 - a row of the table
SAMPLERS: dict[str, tuple[Any, str]] = {
    "idle": (rule(NEVER), r"Own\(\) must commit at least one eligible position .* in round 1"),
    "overreaching": (rule(lambda v: everything(v, 7)), r"Own\(\) must commit eligible positions"),
    "writes [MASK]": (rule(lambda v: everything(v, 23)), r"Own\(\) must commit .* in round 1"),
    "re-masks all": (
        rule(lambda v: Decision(v.eligible, remask=torch.ones_like(v.masked)), **REVISES),
        r"Own\(\) must re-mask positions only that",
    ),
    "re-masks given tokens": (
        rule(lambda v: Decision(v.eligible, remask=~v.masked), **REVISES),
        r"Own\(\) must re-mask positions only that",
    ),
}
WRONG_FORMS: dict[str, tuple[Any, str]] = {
    "shares": (
        rule(lambda v: Decision(commit=v.confidence)),
        r"must return commit of kind bool and shape .*, got torch.float64",
    ),
    "narrow": (
        rule(lambda v: Decision(commit=v.eligible[:, :3])),
        r"must return commit of kind bool and shape \(2, 4\), got torch.bool \(2, 3\)",
    ),
    "None": (
        rule(lambda v: Decision(commit=None)),
        r"must return commit of kind bool and shape \(2, 4\), got None",
    ),
    "re-masks in one row": (
        rule(lambda v: Decision(commit=v.eligible, remask=v.eligible[0]), **REVISES),
        r"must return remask of kind bool .* got torch.bool \(4,\)",
    ),
    "fractions of tokens": (
        rule(lambda v: Decision(commit=v.eligible, tokens=v.tokens.double())),
        r"must return tokens of kind integer .* got torch.float64 \(2, 4\)",
    ),
    "no state": (
        plugin(Sampler, step=lambda self, view, state: Decision(view.eligible)),
        r"must return the pair \(Decision, state\), got a Decision",
    ),
    "a mask": (rule(lambda v: v.eligible), r".*, got a Tensor in place of the Decision"),
}  # fmt: skip
LATER: dict[str, tuple[Any, str]] = {
    "tires": (
        rule(lambda v: Decision(first_of(v) & (v.masked.sum(-1, keepdim=True) > 2))),
        r"Own\(\) must commit .* in round 3",
    ),
    "settles without a token": (
        rule(lambda v: Decision(first_of(v), settle=v.eligible), **REVISES),
        "settle positions only that hold a token",
    ),
    "re-masks without end": (
        rule(
            lambda v: Decision(
                v.eligible & v.masked,
                settle=torch.zeros_like(v.masked),
                remask=v.eligible & ~v.masked,
            ),
            **REVISES,
        ),
        "promises to finish a block within 4 steps",
    ),
}


@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize("verifier", [NoVerifier(), SelfVerify(2)], ids=repr)
def test_a_sampler_that_commits_what_it_must_not_is_named(kind: str, verifier: Any) -> None:
    sampler, sentence = SAMPLERS[kind]
    with pytest.raises(RuntimeError, match=sentence):
        run(sampler, templates=[[23, 3]] * 2, verifier=verifier)


@pytest.mark.parametrize("kind", WRONG_FORMS)
def test_a_step_that_returns_no_decision_of_the_view_is_named(kind: str) -> None:
    """Once these were errors of torch and Python from inside the engine."""
    sampler, sentence = WRONG_FORMS[kind]
    with pytest.raises(RuntimeError, match=rf"^step of Own\(\) {sentence}"):
        run(sampler)


@pytest.mark.parametrize("kind", LATER)
def test_a_sampler_that_breaks_a_promise_is_named(kind: str) -> None:
    sampler, sentence = LATER[kind]
    with pytest.raises(RuntimeError, match=sentence):
        run(sampler)


# Caches


def policy(recompute: Any, **members: Any) -> Any:
    return plugin(CachePolicy, recompute=lambda self, query: recompute(query), **members)


def whole(query: Any) -> Any:
    return columns((0, query.end))


def hiding(found: Any) -> Any:
    return policy(whole, hidden=lambda self, query: found)


RANGES = r"(?s)^recompute of Own.* ranges of columns .*, got "
ONE_RANGE = r"^hidden of Own.* must return one range of columns"
CACHES: list[tuple[Any, str]] = [
    (policy(lambda query: [1, 2]), RANGES + r"\[1, 2\] \(list\)\.$"),
    (policy(lambda query: slice(1, 2)), RANGES + r"slice\(1, 2, None\) \(slice\)\.$"),
    (policy(lambda query: torch.tensor([1, 2])), RANGES + r"tensor\(\[1, 2\]\) \(Tensor\)\.$"),
    (policy(lambda query: ()), RANGES + r"\(\) \(tuple\)\.$"),
    (
        policy(lambda query: (range(4, 6), range(1, 3))),
        RANGES + r"\(range\(4, 6\), range\(1, 3\)\) \(tuple\)\.$",
    ),
    (policy(lambda query: columns((0, query.end + 1))), r"ranges .*all within \[0, "),
    (
        policy(
            lambda query: (
                columns((0, query.end))
                if query.row.turn_forwards == 0
                else columns((query.needed, query.needed + 1))
            )
        ),
        r"Own\(\) must compute every column that predicts .* in round 2",
    ),
    (
        policy(
            lambda query: columns((query.needed, query.end)), gives=frozenset({Fact.EVERY_COLUMN})
        ),
        r"Own\(\) must not give EVERY_COLUMN",
    ),
    (
        policy(whole, numbers=lambda self, canvas, history, shift: torch.ones(len(canvas), 1)),
        r"numbers of Own\(\) must return Int\[B, N\] .*got torch.float32 \(2, 1\)",
    ),
    # Once errors of Python, or an answer of zeros.
    (hiding((range(1, 2), range(3, 4))), ONE_RANGE),
    (hiding([range(1, 2)]), ONE_RANGE),
    (hiding(None), ONE_RANGE),
    (
        plugin(
            CachePolicy,
            hidden=lambda self, query: (range(query.end),),
            recompute=lambda self, query: (range(query.end),),
        ),
        ONE_RANGE,
    ),
]


@pytest.mark.exhaustive(len(CACHES))
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("number", range(len(CACHES)))
def test_a_policy_that_breaks_its_contract_is_named(number: int, family: str) -> None:
    cache, sentence = CACHES[number]
    with pytest.raises(RuntimeError, match=sentence):
        run(FixedSchedule(4), tiny(family), cache=cache)


def test_columns_that_were_never_computed_are_added() -> None:
    """Once the answer was decoded from slots that hold nothing."""
    block = policy(lambda query: (range(query.needed, query.block[1]),))
    options: Any = {"model": tiny("llada"), "block_length": 8}
    alone, dual = (run(THRESHOLD, cache=cache, **options) for cache in (block, DualCache()))
    # One block, so that both compute everything once.
    assert torch.equal(alone.tokens, dual.tokens)
    assert torch.equal(alone.query_positions, dual.query_positions)


# Block schedules


def schedule(opening: Any = None, **members: Any) -> Any:
    """Returns a schedule that opens all of the answer at once, unless it is said otherwise."""
    opens = opening or (lambda row: Opening.of_block(row.first, row.end))
    return plugin(
        BlockSchedule, window_length=lambda self, block_length, answer_length: answer_length,
        opening=lambda self, row, block_length, shift: opens(row), **members,
    )  # fmt: skip


def numbers(found: Any) -> Any:
    return schedule(numbers=lambda self, canvas, block_length, state: found(canvas))


SCHEDULES: list[tuple[Any, str]] = [
    (
        schedule(lambda row: Opening.of_block(row.first, row.first)),
        r"opening of Own\(.*\) must open at least one unsettled position",
    ),
    (
        schedule(lambda row: Opening.of_block(row.first, row.end + 1)),
        r"opening of Own\(.*\) must open .* columns of \[3, 11\) that end after 3",
    ),
    (
        schedule(lambda row: Opening.of_block(row.first, row.first + 4)),
        r"opening of Own\(.*\) must open .* that end after [78], got",
    ),
    (
        schedule(
            narrowed=lambda self, view, openings, state: (
                replace(view, eligible=view.eligible & False), state
            )
        ),
        r"^Own\(.*\) must leave at least one unsettled position",
    ),
    (schedule(lambda row: None), r"opening of Own\(.*\) must return an Opening .*, got None"),
    (schedule(lambda row: (0, 4)), r"must return an Opening .*, got \(0, 4\) \(tuple\)"),
    (
        numbers(lambda canvas: canvas.masked.sum(-1)),
        r"numbers of Own\(.*\) must return Int\[B, N\] .* \(2,\) for 2 rows",
    ),
    (
        numbers(lambda canvas: canvas.masked.sum(-1, keepdim=True) / 16),
        r"must return .* torch\.float32 \(2, 1\) for 2 rows",
    ),
    (numbers(lambda canvas: canvas.masked.long()[:1]), r"must return .* \(1, \d+\) for 2 rows"),
    (numbers(lambda canvas: [[3], [4]]), r"must return .*, got \[\[3\], \[4\]\] \(list\)"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(SCHEDULES)))
def test_a_schedule_that_breaks_its_contract_is_named(number: int) -> None:
    """Once the sampler was blamed, a torch error raised, or None taken for everything."""
    assert run(blocks=schedule()).forwards > 1
    blocks, sentence = SCHEDULES[number]
    with pytest.raises(RuntimeError, match=sentence):
        run(blocks=blocks)
