"""Every answer is in its language: random languages, models, plug-ins, lengths and templates.

A case is three rows, with languages of their own or none. Each is decoded once, then again with
some of the first answer's tokens given and another sampler. 20,000 answers take twenty minutes:

    pytest -m slow tests/property/test_fuzz_constraints.py --fuzz-seeds 0:4000
"""

import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from json_languages import random_schema
from plugins_under_test import CACHES, INSTANCES, OF_ONE_BLOCK_LENGTH
from tiny_languages import check, compiled, random_pattern, text_of, vocabulary_of
from tiny_models import EVERY_FAMILY, tiny

from dllm_decode import DecodeConfig, decode
from dllm_decode.blocks import (
    AdaptiveBlocks,
    BlockSchedule,
    MultiBlock,
    Sequential,
    SlidingWindow,
    SubBlocks,
)
from dllm_decode.caches import NoCache
from dllm_decode.core.model import MaskPredictor
from dllm_decode.engine.compatibility import refusal_of
from dllm_decode.text.constraints import JsonSchema, compile_constraint
from dllm_decode.verify import NoVerifier, SelfVerify
from samplers import ConfidenceThreshold, Sampler
from samplers.facts import Fact

PROMPTS = [[17, 40, 41, 300, 5, 77], [99], [7, 7, 250, 31, 12, 13, 14, 444, 90]]
NUM_LANGUAGES = 120
SCHEDULES = {"Sequential", "SubBlocks", "MultiBlock", "AdaptiveBlocks", "SlidingWindow"}
SAMPLERS = [
    sampler
    for sampler in INSTANCES
    if Fact.FINAL_TOKENS in sampler.gives and sampler not in OF_ONE_BLOCK_LENGTH
]
FAMILIES = [
    name
    for name in EVERY_FAMILY
    if not refusal_of(tiny(name), ConfidenceThreshold(), NoCache(), verifier=NoVerifier())
]


def language_of(number: int) -> str | None:
    return random_pattern(random.Random(number)) if number % 8 else None


def plugins_of(
    rng: random.Random, model: MaskPredictor, sampler: Sampler, length: int
) -> dict[str, Any]:
    """Draws plug-ins until they fit together."""
    while True:
        blocks = rng.choice((
            Sequential(), SubBlocks(length, rng.choice((1, length))),
            MultiBlock(length, 0.5, 0.5), AdaptiveBlocks((7, 40), 0.2, length),
            SlidingWindow(3, 6),
        ))  # fmt: skip
        evaluate = rng.choice(("batch", "tree"))
        verifier = rng.choice((NoVerifier(), SelfVerify(rng.randint(1, 3), evaluate)))
        plugins = {
            "cache": rng.choice((NoCache(), *CACHES)), "blocks": blocks, "verifier": verifier,
        }  # fmt: skip
        if refusal_of(model, sampler, **plugins) is None:
            return plugins


def config_of(
    rng: random.Random, blocks: BlockSchedule, *, length: int, gen_length: int, seed: int
) -> DecodeConfig:
    return DecodeConfig(
        gen_length=gen_length, temperature=rng.choice((0.0, 0.0, 0.7, 1.5)), seed=seed,
        block_length=None if type(blocks) in (SubBlocks, MultiBlock) else length,
    )  # fmt: skip


def decoded(seed: int, events: Counter[str]) -> None:
    """Decodes a case twice, and checks that all answers are in their languages."""
    rng = random.Random(seed)
    model = tiny(rng.choice(FAMILIES))
    align = model.causal_block_length
    length = align * rng.choice((1, 2)) if align else rng.choice((2, 3, 5, 8))
    patterns = [language_of(rng.randrange(NUM_LANGUAGES)) for _ in PROMPTS]
    automata = compiled(model, patterns)
    shortest = [automaton.least_length() or 0 for automaton in automata if automaton is not None]
    # Prophet's answer, among the samplers, has three tokens.
    gen_length = max([3, length, *shortest]) + rng.choice((0, 1, 4))
    templates: list[list[int]] = []
    for sampler in rng.choices(SAMPLERS, k=2):
        plugins = plugins_of(rng, model, sampler, length)
        config = config_of(
            rng, plugins["blocks"], length=length, gen_length=gen_length, seed=seed
        )  # fmt: skip
        tokens = decode(
            model, PROMPTS, sampler, **plugins, templates=templates, constraint=automata,
            config=config,
        ).tokens  # fmt: skip
        check(model, patterns, tokens)
        for template, row in zip(templates, tokens.tolist(), strict=bool(templates)):
            assert all(
                given in (model.mask_id, token) for given, token in zip(template, row, strict=True)
            )
            events["templates"] += 1
        events["answers"] += sum(pattern is not None for pattern in patterns)
        events.update(type(plugin).__name__ for plugin in (sampler, *plugins.values()))
        templates = [
            [token if rng.random() < 0.3 else model.mask_id for token in row]
            for row in tokens.tolist()
        ]


def answered(seed: int, events: Counter[str]) -> None:
    """Decodes answers that follow a random schema, and checks that all are valid."""
    rng = random.Random(seed)
    model, members = tiny(rng.choice(FAMILIES)), {name: random_schema(rng) for name in "ab"}
    schema = {"type": "object", "properties": members, "required": [rng.choice("ab")]}
    if rng.random() < 0.5:
        schema = {"type": "array", "items": members["a"], "minItems": rng.choice((0, 1, 2))}
    options: Any = {"depth": 1, "extra_keys": rng.random() < 0.5}
    try:
        constraint = JsonSchema(schema, **options)
        automaton = compile_constraint(constraint, vocabulary_of(model)[1])
    except ValueError:
        # No value is valid, the tokens cannot write one, or a keyword has no automaton.
        events["refused"] += 1
        return
    length = model.causal_block_length or rng.choice((3, 8))
    sampler = rng.choice(SAMPLERS)
    plugins = plugins_of(rng, model, sampler, length)
    gen_length = max(length, automaton.least_length() or 0) + rng.choice((0, 4, 16))
    config = config_of(rng, plugins["blocks"], length=length, gen_length=gen_length, seed=seed)
    out = decode(model, PROMPTS, sampler, **plugins, constraint=automaton, config=config)
    validator = jsonschema.Draft202012Validator(schema)
    for row in out.tokens.tolist():
        text = text_of(model, row)
        assert validator.is_valid(json.loads(text)), (text, constraint)
        events["valid"] += 1
        events["long"] += len(text) > 6


def events_of(seeds: range, case: Callable[[int, Counter[str]], None] = decoded) -> Counter[str]:
    events: Counter[str] = Counter()
    for seed in seeds:
        try:
            case(seed, events)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    return events


def test_a_few_random_cases_answer_in_their_languages() -> None:
    events = events_of(range(30))
    assert events["answers"] > 75
    assert events["templates"] > 5


@pytest.mark.slow
def test_random_cases_answer_in_their_languages(pytestconfig: pytest.Config) -> None:
    seeds = range(*map(int, (pytestconfig.getoption("fuzz_seeds") or "0:300").split(":")))
    events = events_of(seeds)
    assert events["answers"] > len(seeds)
    kinds = {type(plugin).__name__ for plugin in (*SAMPLERS, *CACHES)} | SCHEDULES
    assert [name for name in kinds if not events[name]] == []


def test_a_few_random_schemas_are_followed() -> None:
    events = events_of(range(4), answered)
    assert events["valid"] > 2
    assert events["long"] > 0


@pytest.mark.slow
def test_random_schemas_are_followed(pytestconfig: pytest.Config) -> None:
    seeds = range(*map(int, (pytestconfig.getoption("fuzz_seeds") or "0:60").split(":")))
    events = events_of(seeds, answered)
    assert events["valid"] > len(seeds)
    assert events["long"] > len(seeds) // 3
