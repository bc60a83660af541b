"""An error names the plug-in that breaks its contract, at the first step that shows it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from plugins_under_test import plugin, rule
from tiny_models import FAMILIES, tiny
from toys import HashModel

from dllm_decode import (
    BlockSchedule,
    CachePolicy,
    DecodeOutput,
    DualCache,
    NoVerifier,
    SelfVerify,
    StopRule,
    Verifier,
    decode,
)
from dllm_decode.blocks import Sequential
from dllm_decode.core.columns import columns
from dllm_decode.core.passes import Branches, Pass
from dllm_decode.core.rows import Opening
from dllm_decode.core.window import Window
from dllm_decode.engine.forward import forward
from dllm_decode.engine.look import look
from samplers import ConfidenceThreshold, Decision, FixedSchedule, Sampler, View
from samplers.facts import Fact

THRESHOLD = ConfidenceThreshold(0.9)
REVISES: Any = {"gives": frozenset(), "needs": frozenset({Fact.LOGITS_OF_COMMITTED})}


pytestmark = pytest.mark.usefixtures("no_checks_of_types")


def run(sampler: Sampler = THRESHOLD, model: Any = None, **options: Any) -> DecodeOutput:
    options = {"gen_length": 8, "block_length": 4, "stop_at_eos": False, **options}
    return decode(model or HashModel(), [[1, 2, 3], [4]], sampler, **options)


def everything(view: View, token: int) -> Decision:
    return Decision(torch.ones_like(view.eligible), tokens=torch.full_like(view.tokens, token))


def first_of(view: View) -> torch.Tensor:
    return view.eligible & (view.eligible.cumsum(-1) == 1)


WRITING: list[tuple[Any, str]] = [
    (rule(lambda v: Decision(torch.zeros_like(v.eligible))),
     r"Own\(\) must commit at least one eligible position .* in round 1"),
    (rule(lambda v: everything(v, 7)), r"Own\(\) must commit eligible positions"),
    (rule(lambda v: everything(v, 23)), r"Own\(\) must commit .* in round 1"),
    (rule(lambda v: Decision(v.eligible, remask=torch.ones_like(v.masked)), **REVISES),
     r"Own\(\) must re-mask positions only that"),
    (rule(lambda v: Decision(v.eligible, remask=~v.masked), **REVISES),
     r"Own\(\) must re-mask positions only that"),
]  # fmt: skip


@pytest.mark.parametrize(("sampler", "sentence"), WRITING)
@pytest.mark.parametrize("verifier", [NoVerifier(), SelfVerify(2)], ids=repr)
def test_a_sampler_that_writes_what_it_must_not_is_named(
    sampler: Any, sentence: str, verifier: Verifier
) -> None:
    with pytest.raises(RuntimeError, match=sentence):
        run(sampler, templates=[[23, 3]] * 2, verifier=verifier)


def test_a_sampler_that_re_masks_columns_after_the_answer_is_named() -> None:
    """The last block ends after the answer; such columns became [MASK] without a word."""
    sampler = rule(lambda v: Decision(v.eligible, remask=v.positions >= 6), **REVISES)
    with pytest.raises(RuntimeError, match=r"Own\(\) must re-mask positions only that"):
        run(sampler, gen_length=6)


def test_a_sampler_that_re_masks_an_earlier_block_is_named() -> None:
    """The error named the verifier, which shows no position of the earlier block."""

    def decide(view: View) -> Decision:
        # Re-masks one token of the first block while the second has masks.
        back = (view.masked.sum(-1) == 2)[:, None] & (view.positions == 0) & ~view.masked
        return Decision(first_of(view) & view.masked, remask=back)

    going_back = rule(decide, scope="answer", max_steps=lambda self, masks: 9 * masks, **REVISES)
    with pytest.raises(RuntimeError, match=r"Own\(\) must re-mask tokens of the open block only"):
        run(going_back)


STEP = r"^step of Own\(\) must return "
SAMPLERS: list[tuple[Any, str]] = [
    # Further cases are those of unit/samplers/test_testing.py, which decode too.
    (rule(lambda v: Decision(v.eligible, remask=v.eligible[0]), **REVISES),
     STEP + r"remask of kind bool .* got torch.bool \(4,\)"),
    (rule(lambda v: Decision(v.eligible, tokens=v.tokens.double())),
     STEP + r"tokens of kind integer .* got torch.float64 \(2, 4\)"),
    (rule(lambda v: Decision(first_of(v) & (v.masked.sum(-1, keepdim=True) > 2))),
     r"Own\(\) must commit .* in round 3"),
    (rule(lambda v: Decision(v.eligible, tokens=torch.full_like(v.tokens, 9999))),
     "must commit tokens of the model only"),
    (rule(lambda v: Decision(first_of(v), settle=v.eligible), **REVISES),
     "settle positions only that hold a token"),
    (rule(lambda v: Decision(v.eligible & v.masked, settle=v.eligible & False,
                             remask=v.eligible & ~v.masked), **REVISES),
     "promises to finish a block within 4 steps"),
]  # fmt: skip


def opening(change: Callable[[Opening], Any]) -> Any:
    """Returns a schedule that applies `change` to the openings of `Sequential`."""

    def changed(self: Any, *arguments: Any) -> Any:
        return change(Sequential.opening(self, *arguments))

    return plugin(BlockSchedule, gives=Sequential().gives, opening=changed)


def schedule(
    opens: Any = lambda row: Opening.of_block(row.blocks_start, row.end), **members: Any
) -> Any:
    """Returns a schedule that opens the whole answer at once, unless `opens` says otherwise."""
    return plugin(
        BlockSchedule, window_length=lambda self, block_length, answer_length: answer_length,
        opening=lambda self, row, block_length, shift: opens(row), **members,
    )  # fmt: skip


def numbers(found: Any) -> Any:
    return schedule(numbers=lambda self, canvas, block_length, state: found(canvas))


SCHEDULES: list[tuple[Any, str]] = [
    # Once the error named the sampler, torch raised it, or None was taken for everything.
    (schedule(lambda row: Opening.of_block(row.blocks_start, row.blocks_start)),
     r"opening of Own\(.*\) must open at least one unsettled position"),
    (schedule(lambda row: Opening.of_block(row.blocks_start, row.end + 1)),
     r"opening of Own\(.*\) must open .* columns of \[3, 11\) that end after 3"),
    (schedule(lambda row: Opening.of_block(row.blocks_start, row.blocks_start + 4)),
     r"opening of Own\(.*\) must open .* that end after [78], got"),
    (schedule(narrowed=lambda self, view, openings, state: (
        replace(view, eligible=view.eligible & False), state)),
     r"^Own\(.*\) must leave at least one unsettled position"),
    (schedule(lambda row: None), r"opening of Own\(.*\) must return an Opening .*, got None"),
    (opening(lambda old: old._replace(start=old.start / 1)), "whole columns"),
    (opening(lambda old: old._replace(block=(old.start + 1, old.stop))),
     "columns of its block alone"),
    (opening(lambda old: old._replace(phase=(old.start, old.stop - 1))),
     "columns of its phase alone"),
    (opening(lambda old: old._replace(phase=(old.start, old.stop + 4))),
     "must have at most 4 columns"),
    (numbers(lambda canvas: canvas.masked.sum(-1)),
     r"numbers of Own\(.*\) must return Int\[B, N\] .* \(2,\) for 2 rows"),
    (numbers(lambda canvas: canvas.masked.sum(-1, keepdim=True) / 16),
     r"must return .* torch\.float32 \(2, 1\) for 2 rows"),
    (numbers(lambda canvas: [[3], [4]]), r"must return .*, got \[\[3\], \[4\]\] \(list\)"),
]  # fmt: skip


def looking(change: Callable[..., Any], **members: Any) -> Any:
    """Returns a verifier that calls `change` with the state and the result of the default look."""

    def changed(self: Any, decoder: Any, state: Any) -> Any:
        return change(state, *look(decoder, state))

    return plugin(Verifier, gives=NoVerifier().gives, look=changed, **members)


def deciding(decide: Callable[[View], Any]) -> Any:
    """Returns a verifier that decides in place of the sampler."""
    return looking(lambda old, new, seen: (new, seen._replace(decision=decide(seen.view))))


def drafting(change: Callable[[Branches, Window], Branches]) -> Any:
    """Returns a verifier that reads the canvases of the rows after `change`."""

    def drafted(self: Any, decoder: Any, state: Any) -> Any:
        window = Window.of([row.opening.start for row in state.rows], 4, state.canvas)
        branches = change(Branches.of_rows(state.canvas), window)
        return forward(decoder, state, Pass(window, branches=branches))

    return plugin(Verifier, gives=NoVerifier().gives, look=drafted)


VERIFIERS: list[tuple[Any, str]] = [
    (looking(lambda old, new, seen: seen), r"look of Own\(\) must return the pair"),
    (looking(lambda old, new, seen: (old, seen)), "no forward is counted"),
    (looking(lambda old, new, seen: (new, seen._replace(waiting=(0, 1)))), "waiting of the Look"),
    (looking(lambda old, new, seen: (new, seen._replace(waiting=(0, 0)))), "each of them once"),
    (looking(lambda old, new, seen: (new, seen._replace(waiting=(1,)))),
     "view of the Look of .* must have its 1 rows, got 2"),
    (looking(lambda old, new, seen: (new._replace(verifier_state=torch.zeros(7)), seen)),
     r"The state of Own\(\) must be .*, got a tensor of shape \(7,\) for 2 rows"),
    (looking(lambda old, new, seen: (new, seen), after=lambda self, decoder, state: None),
     r"after of Own\(\) must return the pair"),
    (looking(lambda old, new, seen: (new, seen), max_steps=lambda *_: None), "^max_steps of Own"),
    (looking(lambda old, new, seen: (new, seen), max_steps=lambda *_: 0),
     r"^Own\(\) promises to finish"),
    (deciding(lambda view: view.eligible), "must return a Decision, got a Tensor"),
    (deciding(lambda view: Decision(view.eligible[:, :2])),
     r"must return commit of kind bool and shape \(2, 4\)"),
    (deciding(lambda view: Decision(view.eligible & False)),
     "Own.* must commit at least one eligible position"),
    (drafting(lambda branches, window: branches._replace(tokens=window.part(branches.tokens))),
     "tokens of Branches must be whole canvases"),
    (drafting(lambda branches, window: branches._replace(branch_numbers=(1, 1))),
     "Branches.branch_numbers must be below num_branches of the verifier, 1, got 1"),
    (drafting(lambda branches, window: branches._replace(causal_from=(0, 0))),
     "causal_from of Branches must be empty unless in_columns is True"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "plug_in", "sentence"),
    [
        *(("sampler", *case) for case in SAMPLERS),
        *(("blocks", *case) for case in SCHEDULES),
        *(("verifier", *case) for case in VERIFIERS),
        ("stop", plugin(StopRule, stops=lambda self, tokens: None), "True or False, got None"),
    ],
)
def test_a_plug_in_that_breaks_its_contract_is_named(
    kind: str, plug_in: Any, sentence: str
) -> None:
    with pytest.raises(RuntimeError, match=sentence):
        run(**{kind: plug_in})


def policy(choose: Any, **members: Any) -> Any:
    return plugin(CachePolicy, columns_to_compute=lambda self, query: choose(query), **members)


def whole(query: Any) -> Any:
    return columns((0, query.end))


def hiding(found: Any) -> Any:
    return policy(whole, hidden=lambda self, query: found)


RANGES = r"(?s)^columns_to_compute of Own.* ranges of columns .*, got "
ONE_RANGE = r"^hidden of Own.* must return one range of columns"
CACHES: list[tuple[Any, str]] = [
    (policy(lambda query: [1, 2]), RANGES + r"\[1, 2\] \(list\)\.$"),
    (policy(lambda query: ()), RANGES + r"\(\) \(tuple\)\.$"),
    (policy(lambda query: (range(4, 6), range(1, 3))),
     RANGES + r"\(range\(4, 6\), range\(1, 3\)\) \(tuple\)\.$"),
    (policy(lambda query: columns((0, query.end + 1))), r"ranges .*all within \[0, "),
    (policy(lambda q: columns((q.end - 1, q.end)) if q.row.period_forwards else whole(q)),
     r"Own\(\) must compute every column that predicts .* in round 2"),
    (policy(lambda q: columns((q.first_needed, q.end)), gives=frozenset({Fact.EVERY_COLUMN})),
     r"Own\(\) must not give EVERY_COLUMN"),
    (policy(whole, numbers=lambda self, canvas, history, shift: torch.ones(len(canvas), 1)),
     r"numbers of Own\(\) must return Int\[B, N\] .*got torch.float32 \(2, 1\)"),
    # Once these gave errors of Python, or an answer of zeros.
    (hiding((range(1, 2), range(3, 4))), ONE_RANGE),
    (hiding(None), ONE_RANGE),
    (policy(whole, hidden=lambda self, query: (range(query.end),)), ONE_RANGE),
]  # fmt: skip


@pytest.mark.parametrize(("cache", "sentence"), CACHES)
def test_a_policy_that_breaks_its_contract_is_named(cache: CachePolicy, sentence: str) -> None:
    for family in FAMILIES:
        with pytest.raises(RuntimeError, match=sentence):
            run(FixedSchedule(4), tiny(family), cache=cache)


def test_columns_that_were_never_computed_are_added() -> None:
    """Once the answer was decoded from slots that hold nothing."""
    block = policy(lambda query: (range(query.first_needed, query.block[1]),))
    options: Any = {"model": tiny("llada"), "block_length": 8}
    alone, dual = (run(cache=cache, **options) for cache in (block, DualCache()))
    # One block, so that both compute everything once.
    assert torch.equal(alone.tokens, dual.tokens)
    assert torch.equal(alone.query_positions, dual.query_positions)


def test_a_verifier_that_decides_alone_is_blamed_for_its_own_number_of_steps() -> None:
    def redo(old: Any, new: Any, seen: Any) -> Any:
        view = seen.view
        never = torch.zeros_like(view.eligible)
        undo = Decision(view.masked, settle=never, remask=view.eligible & ~view.masked)
        return new, seen._replace(decision=undo)

    verifier = looking(redo, asks_sampler=False)
    sampler = rule(lambda view: Decision(view.eligible), **REVISES)
    with pytest.raises(RuntimeError, match=r"^Own\(\) promises to finish .*request 0") as caught:
        run(sampler, verifier=verifier)
    assert repr(verifier) in str(caught.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"observers": print}, "observers must be a sequence of functions"),
        ({"observers": [3]}, "observers must be a sequence of functions"),
        ({"stop": StopRule}, "stop must be a StopRule"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_observer_stop_rule_or_option_is_refused(
    options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=sentence):
        run(**options)
