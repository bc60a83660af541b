"""Every setting changes a decode, or is refused or warned of; none is without effect in silence.

Random cases are decoded again with one setting changed: an option, a plug-in in place of another,
or a field of a plug-in. Changes of the same kind, with the same verifier, are counted together.
"""

import random
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import pytest
from fuzzed import COSTS
from fuzzed_cases import Case, case_of

from dllm_decode import DualCache, NoCache, NoVerifier, PrefixCache, Sequential
from dllm_decode.core.requests import RequestQueue
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.decoding import new_decoder, raise_errors
from dllm_decode.engine.loop import run
from samplers import ConfidenceThreshold, Factor, FixedSchedule

_LEAST = 12
"""Cases that a kind of change must have had before it is called without effect."""
_INERT = {
    # Nothing is drawn at temperature 0, as by default.
    "seed",
    # "tempered" is "raw" at temperature 0.
    "confidence_from",
    # Nothing comes after the EOS that such a verifier commits from left to right.
    "truncate_at_eos",
}


class Change(NamedTuple):
    """A decoder with one setting changed, and what kind of change it is."""

    kind: str
    parts: dict[str, Any]


def outcome(decoder: Decoder, case: Case) -> list[object]:
    """Returns tokens and costs of a case's requests, decoded together."""
    requests = [
        decoder.request(
            request.prompt, request.index, template=request.template, stop=request.stop, **options
        )
        for request, options in zip(case.requests, case.options, strict=True)
    ]  # fmt: skip
    rounds = raise_errors(run(decoder, RequestQueue(requests), len(requests), []))
    answers = sorted(rounds, key=lambda ended: ended.index)
    names = ("tokens", *COSTS)
    return [[str(getattr(answer.output, name)) for name in names] for answer in answers]


def parts_of(decoder: Decoder) -> dict[str, Any]:
    return {
        "sampler": decoder.sampler, "cache": decoder.cache, "verifier": decoder.verifier,
        "blocks": decoder.blocks, "config": decoder.config,
    }  # fmt: skip


def alternatives(kind: Any, value: object, rng: random.Random) -> object:
    """Returns another value of a field, or the same one if none is known."""
    if get_origin(kind) is Literal:
        return rng.choice(get_args(kind))
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return max(0, value + rng.choice((-2, -1, 1, 2)))
    if isinstance(value, float):
        return rng.choice((0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0 * value))
    return value


def changes(case: Case, rng: random.Random) -> list[Change]:
    """Draws changes of a case: each plug-in once, and some fields."""
    decoder, parts = case.decoder, parts_of(case.decoder)
    verifier, plugins = type(decoder.verifier).__name__, {}
    plugins["sampler"] = rng.choice((FixedSchedule(1), Factor(2.0)))
    plugins["cache"] = rng.choice((NoCache(), PrefixCache(), DualCache()))
    plugins["blocks"] = Sequential()
    drawn = [
        Change(f"{name} {type(parts[name]).__name__} -> {type(other).__name__} with {verifier}",
               {**parts, name: other})
        for name, other in plugins.items()
    ]  # fmt: skip
    for name, plugin in parts.items():
        if not fields(plugin):
            continue
        field = rng.choice(fields(plugin))
        value = getattr(plugin, field.name)
        other = alternatives(get_type_hints(type(plugin)).get(field.name), value, rng)
        if field.name in _INERT or other == value:
            continue
        try:
            changed = replace(plugin, **{field.name: other})
        except (TypeError, ValueError):
            continue
        drawn.append(Change(f"{type(plugin).__name__}.{field.name} with {verifier}",
                            {**parts, name: changed}))  # fmt: skip
    # A checked twin of a plug-in is not equal to the plug-in; their texts are equal.
    return [change for change in drawn if repr(change.parts) != repr(parts)]


def silent(seeds: range, draw: Callable[[int], Case | str] = case_of) -> dict[str, list[int]]:
    """Returns the kinds of change that changed nothing in any case, without error or warning."""
    quiet: defaultdict[str, list[int]] = defaultdict(list)
    heard: set[str] = set()
    for seed in seeds:
        case, rng = draw(seed), random.Random(seed)
        if isinstance(case, str):
            continue
        before = outcome(case.decoder, case)
        for kind, parts in changes(case, rng):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    is_same = outcome(new_decoder(case.decoder.model, **parts), case) == before
            except (ValueError, UserWarning):
                is_same = False
            quiet[kind] += [seed] * is_same
            heard |= set() if is_same else {kind}
    return {
        kind: seeds for kind, seeds in quiet.items() if kind not in heard and len(seeds) >= _LEAST
    }


@dataclass(frozen=True)
class Idle(ConfidenceThreshold):
    """Has a field that nothing reads."""

    nothing: bool = False


def test_a_setting_without_effect_is_found() -> None:
    def planted(seed: int) -> Case | str:
        case = case_of(seed)
        if isinstance(case, str) or not isinstance(case.decoder.verifier, NoVerifier):
            return "no case"
        return case._replace(decoder=replace(case.decoder, sampler=Idle(0.4)))

    assert list(silent(range(120), planted)) == ["Idle.nothing with NoVerifier"]


@pytest.mark.slow
def test_each_setting_changes_a_decode_or_is_refused_or_warned_of() -> None:
    assert silent(range(3000)) == {}
