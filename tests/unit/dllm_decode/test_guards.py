"""Mistakes of a beginner in a schedule, a verifier, a stop rule or an observer are named."""

from collections.abc import Callable
from typing import Any

import jaxtyping
import pytest
import torch
from plugins_under_test import plugin
from toys import HashModel

from dllm_decode import BlockSchedule, DecodeOutput, NoVerifier, StopRule, Verifier, decode
from dllm_decode.blocks import Sequential
from dllm_decode.core.rows import Opening
from dllm_decode.views import look
from samplers import ConfidenceThreshold, Decision, Sampler
from samplers.facts import Fact

GIVES = NoVerifier().gives


@pytest.fixture(autouse=True)
def no_checks_of_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def run(sampler: Any = ConfidenceThreshold(0.9), **options: Any) -> DecodeOutput:
    options = {"gen_length": 8, "block_length": 4, "stop_at_eos": False, **options}
    return decode(HashModel(), [[1, 2, 3], [4]], sampler, **options)


def looking(change: Callable[..., Any], **members: Any) -> Any:
    """A verifier whose look is the sampler's own, changed."""

    def changed(self: Any, decoder: Any, state: Any) -> Any:
        return change(state, *look(decoder, state))

    return plugin(Verifier, gives=GIVES, look=changed, **members)


def opening(change: Callable[[Opening], Any]) -> Any:
    def changed(self: Any, *given: Any) -> Any:
        return change(Sequential.opening(self, *given))

    return plugin(BlockSchedule, gives=Sequential().gives, opening=changed)


def stopping(answer: Any) -> Any:
    return plugin(StopRule, stops=lambda self, tokens: answer)


VERIFIERS: dict[str, tuple[Any, str]] = {
    "forgets the state": (looking(lambda old, new, seen: (old, seen)), "no forward is counted"),
    "no rows": (looking(lambda old, new, seen: (new, seen._replace(rows=()))), "rows of the Look"),
    "fewer rows": (
        looking(lambda old, new, seen: (new, seen._replace(rows=(0,)))),
        "view of the Look of .* must have its 1 rows, got 2",
    ),
    "a mask": (
        looking(lambda old, new, seen: (new, seen._replace(decision=seen.view.eligible))),
        "must return a Decision, got a Tensor",
    ),
    "a narrow decision": (
        looking(
            lambda old, new, seen: (
                new, seen._replace(decision=Decision(seen.view.eligible[:, :2]))
            )
        ),
        r"must return commit of kind bool and shape \(2, 4\)",
    ),
    "a state of other rows": (
        looking(lambda old, new, seen: (new._replace(verifier=torch.zeros(7)), seen)),
        r"an entry for 2 rows, got shape \(7,\)",
    ),
    "after gives nothing": (
        looking(lambda old, new, seen: (new, seen), after=lambda self, decoder, state: None),
        r"after of Own\(\) must return the pair",
    ),
}  # fmt: skip
SCHEDULES: dict[str, tuple[Any, str]] = {
    "fractions": (opening(lambda one: one._replace(start=one.start / 1)), "whole columns"),
    "a block elsewhere": (
        opening(lambda one: one._replace(block=(one.start + 1, one.stop))),
        "columns of its block alone",
    ),
    "a phase elsewhere": (
        opening(lambda one: one._replace(phase=(one.start, one.stop - 1))),
        "columns of its phase alone",
    ),
    "a wide phase": (
        opening(lambda one: one._replace(phase=(one.start, one.stop + 4))),
        "must have at most 4 columns",
    ),
}
SAMPLERS: dict[str, tuple[Any, str]] = {
    "a token beyond the vocabulary": (
        lambda view: Decision(view.eligible, tokens=torch.full_like(view.tokens, 9999)),
        "must commit tokens of the model only",
    ),
    "a number of steps that is none": (lambda view: Decision(view.eligible), "max_steps of Own"),
}


def step_of(decide: Callable[..., Decision]) -> Callable[..., Any]:
    return lambda self, view, state: (decide(view), state)


@pytest.mark.parametrize("kind", VERIFIERS)
def test_a_verifier_that_breaks_its_contract_is_named(kind: str) -> None:
    verifier, sentence = VERIFIERS[kind]
    with pytest.raises(RuntimeError, match=sentence):
        run(verifier=verifier)


@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_schedule_that_opens_what_does_not_fit_is_named(kind: str) -> None:
    schedule, sentence = SCHEDULES[kind]
    with pytest.raises(RuntimeError, match=sentence):
        run(blocks=schedule)


@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_sampler_whose_numbers_are_wrong_is_named(kind: str) -> None:
    decide, sentence = SAMPLERS[kind]
    own = {"max_steps": lambda self, num_masks: None} if "steps" in kind else {}
    with pytest.raises(RuntimeError, match=sentence):
        run(plugin(Sampler, step=step_of(decide), **own))


def test_a_verifier_with_a_wrong_number_of_steps_is_named() -> None:
    for steps, sentence in ((None, "^max_steps of Own"), (0, r"^Own\(\) promises to finish")):
        verifier = looking(
            lambda old, new, seen: (new, seen), max_steps=lambda *_, steps=steps: steps
        )
        with pytest.raises(RuntimeError, match=sentence):
            run(verifier=verifier)


def test_a_verifier_that_decides_alone_is_blamed_for_its_own_number_of_steps() -> None:
    def redo(old: Any, new: Any, seen: Any) -> Any:
        view = seen.view
        never = torch.zeros_like(view.eligible)
        undo = Decision(view.masked, settle=never, remask=view.eligible & ~view.masked)
        return new, seen._replace(decision=undo)

    verifier = looking(redo, asks_sampler=False)
    sampler = plugin(
        Sampler, step=step_of(lambda view: Decision(view.eligible)), gives=frozenset(),
        needs=frozenset({Fact.LOGITS_OF_COMMITTED}),
    )  # fmt: skip
    with pytest.raises(RuntimeError, match=r"^Own\(\) promises to finish .*request 0") as caught:
        run(sampler, verifier=verifier)
    assert repr(verifier) in str(caught.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"observers": print}, "observers must be a sequence of functions"),
        ({"observers": [3]}, "observers must be a sequence of functions"),
        ({"stop": "x"}, "stop must be a StopRule"),
        ({"stop": StopRule}, "stop must be a StopRule"),
        ({"verifer": NoVerifier()}, "such as verifier, got 'verifer'"),
    ],
    ids=str,
)
def test_what_is_no_observer_stop_rule_or_option_is_refused(
    options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=sentence):
        run(**options)


def test_a_stop_rule_that_says_neither_yes_nor_no_is_named() -> None:
    with pytest.raises(RuntimeError, match="must return True or False, got None"):
        run(stop=stopping(None))
    assert (run(stop=stopping(True)).nfe == 1).all()


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ({"needs": [Fact.HAS_MASK]}, "needs of .* must be a property with a frozenset of Fact"),
        ({"scope": "blocks"}, "scope of .* must be one of block, suffix, answer"),
    ],
    ids=str,
)
def test_a_sampler_that_declares_nonsense_is_refused(
    members: dict[str, Any], sentence: str
) -> None:
    own = plugin(Sampler, step=step_of(lambda view: Decision(view.eligible)), **members)
    with pytest.raises(ValueError, match=sentence):
        run(own)
