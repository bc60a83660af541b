"""Laws of constraints: every answer is in its language, alone, in a batch and joined late."""

import json
from collections import Counter

import jsonschema
import pytest
import torch
from plugins_under_test import INSTANCES, OF_NOISE, one_of_each_kind
from pretended import Operations
from tiny_languages import automaton_of, check, compiled, text_of, vocabulary_of
from tiny_models import BIDIRECTIONAL, BLOCK_CAUSAL, FAMILIES, new_tiny, tiny, tiny_gemma

from dllm_decode import decode, decode_many
from dllm_decode.blocks import (
    AdaptiveBlocks,
    BlockSchedule,
    MultiBlock,
    Sequential,
    SlidingWindow,
    SubBlocks,
)
from dllm_decode.caches import CachePolicy, DualCache, FreeCache, NoCache, PrefixCache
from dllm_decode.engine.constraints.constrained_rows import ConstrainedRows
from dllm_decode.text.constraints import JsonSchema, Regex, compile_constraint
from dllm_decode.verify import S2D2, SelfVerify
from samplers import ConfidenceThreshold, FixedSchedule, Sampler
from samplers.facts import Fact

PROMPTS = [[17, 40, 41, 300, 5, 77], [99], [7, 7, 250, 31, 12, 13, 14, 444, 90]]
PATTERNS = (
    r"(?:yes|no)", r"\d{4}-\d{2}-\d{2}", r'\{"a": ?(?:true|false|[0-9]{1,3})\}', r"(?:ab|ba)*c?",
    r"[a-c]+(?:,[a-c]+){0,2}", r".*",
)  # fmt: skip
NAMED = [sampler for sampler in INSTANCES if Fact.FINAL_TOKENS in sampler.gives]
SCHEDULES: list[BlockSchedule] = [
    Sequential(4), SubBlocks(4, 2), MultiBlock(4, 0.5, 0.5), AdaptiveBlocks((7, 40), 0.2, 4),
    SlidingWindow(3, 6),
]  # fmt: skip


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("sampler", one_of_each_kind(NAMED))
def test_every_sampler_answers_in_the_language(sampler: Sampler, temperature: float) -> None:
    for family in FAMILIES:
        model = tiny(family)
        for first in range(0, len(PATTERNS), 3):
            patterns = PATTERNS[first : first + 3]
            out = decode(
                model, PROMPTS, sampler, constraint=compiled(model, patterns), gen_length=13,
                block_length=4 if not model.causal_block_length else None,
                temperature=temperature, seed=first,
            )  # fmt: skip
            check(model, patterns, out.tokens)


def test_a_block_that_was_filled_before_an_earlier_one_is_part_of_the_path() -> None:
    model, pattern = tiny("dream"), "(?:(?:nss){2})+[co0ny]"
    for seed in range(40):
        out = decode(
            model, PROMPTS, ConfidenceThreshold(0.9), blocks=MultiBlock(3, 0.1, 0.1), gen_length=7,
            constraint=compiled(model, [pattern] * 3), temperature=1.0, seed=seed,
        )  # fmt: skip
        check(model, [pattern] * 3, out.tokens)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("evaluate", ["batch", "tree"])
@pytest.mark.parametrize("family", FAMILIES)
def test_self_verify_gives_the_tokens_of_plain_decoding(
    family: str, evaluate: str, temperature: float
) -> None:
    model, patterns = tiny(family), [PATTERNS[2], None, PATTERNS[1]]
    block = None if model.causal_block_length else 4
    verifiers = ({}, {"verifier": SelfVerify(3, evaluate)})
    plain, verified = (
        decode(
            model, PROMPTS, FixedSchedule(2), constraint=compiled(model, patterns), gen_length=13,
            block_length=block, temperature=temperature, **options,
        ).tokens
        for options in verifiers
    )  # fmt: skip
    check(model, patterns, plain)
    assert torch.equal(plain, verified)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("blocks", SCHEDULES, ids=repr)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_is_the_same_alone_in_a_batch_and_joined_late(
    family: str, blocks: BlockSchedule, temperature: float
) -> None:
    model = tiny(family)
    if model.causal_block_length and not isinstance(blocks, Sequential):
        pytest.skip("its blocks have one length")
    prompts = [*PROMPTS, [3, 4, 5], [8]]
    patterns = [PATTERNS[1], None, PATTERNS[2], PATTERNS[3], None]
    automata, sampler = compiled(model, patterns), ConfidenceThreshold(0.3)
    options = {"blocks": blocks, "gen_length": 12, "temperature": temperature}
    together = decode(model, prompts, sampler, constraint=automata, **options).tokens
    check(model, patterns, together)
    late = decode_many(model, prompts, sampler, num_rows=2, constraint=automata, **options)
    assert torch.equal(torch.cat([out.tokens for out in late]), together)
    plain = decode(model, prompts, sampler, **options).tokens
    for row, automaton in enumerate(automata):
        if automaton is None:
            assert torch.equal(together[row], plain[row])
    if temperature == 0.0:
        for row, automaton in enumerate(automata):
            alone = decode(model, [prompts[row]], sampler, constraint=automaton, **options)
            assert torch.equal(alone.tokens[0], together[row])


def test_given_tokens_and_lengths_are_kept() -> None:
    model = tiny(BIDIRECTIONAL)
    texts, _ = vocabulary_of(model)
    mask, dash = model.mask_id, texts.index("-")
    template = [mask] * 4 + [dash]
    for length in range(10, 16):
        out = decode(
            model, PROMPTS[:1], ConfidenceThreshold(0.1), templates=[template], gen_length=length,
            constraint=automaton_of(model, r"\d{4}-\d{2}-\d{2}"), block_length=length,
        )  # fmt: skip
        check(model, [r"\d{4}-\d{2}-\d{2}"], out.tokens)
        assert out.tokens[0, 4] == dash


def test_rows_without_a_constraint_cost_no_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    model, counts = tiny(BIDIRECTIONAL), Counter[bool]()
    # The first decode fills caches of constants.
    decode(model, PROMPTS, FixedSchedule(2), gen_length=8)
    for patched in (False, True):
        if patched:
            monkeypatch.setattr(ConstrainedRows, "of", lambda rows, device: None)
        with Operations(lambda *_, patched=patched: counts.update([patched])):
            for _ in decode_many(model, PROMPTS, FixedSchedule(2), num_rows=2, gen_length=8):
                pass
    assert counts[False] == counts[True] > 100


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_language_of_every_text_changes_nothing(family: str, temperature: float) -> None:
    model, compared = tiny(family), 0
    every = automaton_of(model, r"[\s\S]*")
    for seed in range(4):
        plain, free = (
            decode(
                model, PROMPTS, ConfidenceThreshold(0.1), constraint=constraint, gen_length=12,
                temperature=temperature, seed=seed,
            )
            for constraint in (None, every)
        )  # fmt: skip
        for row, tokens in enumerate(plain.tokens.tolist()):
            if not set(tokens) & set(model.eos_ids):
                assert torch.equal(free.tokens[row], plain.tokens[row])
                assert torch.equal(free.nfe[row], plain.nfe[row])
                compared += 1
    assert compared > 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_json_follows_its_schema(temperature: float) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"enum": ["yes", "no", "abc"]},
            "ages": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
        },
        "required": ["name", "ages"],
    }
    model = tiny(BIDIRECTIONAL)
    _, vocabulary = vocabulary_of(model)
    automaton = compile_constraint(JsonSchema(schema), vocabulary)
    for seed in range(3):
        out = decode(
            model, PROMPTS, ConfidenceThreshold(0.1), constraint=automaton, gen_length=40,
            block_length=8, temperature=temperature, seed=seed, verifier=SelfVerify(),
            cache=DualCache(),
        )  # fmt: skip
        for row in out.tokens.tolist():
            jsonschema.validate(json.loads(text_of(model, row)), schema)


@pytest.mark.usefixtures("no_checks_of_types")
def test_a_request_is_refused_before_the_first_forward() -> None:
    model = tiny(BIDIRECTIONAL)
    date = automaton_of(model, r"\d{4}-\d{2}-\d{2}")
    ask = {"constraint": date, "gen_length": 12, "block_length": 4}
    least = date.least_length()
    assert least > 2
    sampler = ConfidenceThreshold()
    with pytest.raises(ValueError, match=f"at least {least}, .* got {least - 1}"):
        decode(model, PROMPTS, sampler, constraint=date, gen_length=least - 1)
    decode(model, PROMPTS, sampler, constraint=date, gen_length=least)
    revising = [reviser for reviser in INSTANCES if reviser not in NAMED]
    assert len({type(reviser) for reviser in revising}) == 8
    for reviser in revising:
        with pytest.raises(ValueError, match="constraint needs a sampler that never changes"):
            decode(model, PROMPTS, reviser, **ask)
    causal = tiny(BLOCK_CAUSAL)
    with pytest.raises(ValueError, match="constraint needs a verifier that lets"):
        decode(
            causal, PROMPTS, sampler, verifier=S2D2(), constraint=automaton_of(causal, "yes"),
            gen_length=8,
        )  # fmt: skip
    with pytest.raises(ValueError, match="agrees with the template"):
        decode(model, PROMPTS[:1], sampler, templates=[[vocabulary_of(model)[0].index("a")]], **ask)
    with pytest.raises(ValueError, match="must be an Automaton"):
        decode(model, PROMPTS, sampler, **ask | {"constraint": Regex("a")})
    with pytest.raises(ValueError, match="one for each of 3 answers, got 2"):
        decode(model, PROMPTS, sampler, **ask | {"constraint": [date, None]})
    with pytest.raises(ValueError, match="constraint must hold one for each prompt, got 0"):
        decode(model, PROMPTS, sampler, **ask | {"constraint": []})
    with pytest.raises(ValueError, match="compiled for the tokens"):
        decode(new_tiny(), [[1]], sampler, **ask)


@pytest.mark.parametrize("cache_", [NoCache(), PrefixCache(), FreeCache()], ids=repr)
@pytest.mark.parametrize("sampler", OF_NOISE, ids=repr)
def test_a_canvas_of_noise_is_settled_in_the_language(
    sampler: Sampler, cache_: CachePolicy
) -> None:
    model, patterns = tiny_gemma(), [PATTERNS[2], None, PATTERNS[4]]
    options = {"gen_length": 32, "block_length": 16, "cache": cache_, "seed": 3}
    automata = compiled(model, patterns)
    out = decode(model, PROMPTS, sampler, constraint=automata, **options)
    check(model, patterns, out.tokens)
    late = decode_many(model, PROMPTS, sampler, num_rows=2, constraint=automata, **options)
    assert torch.equal(torch.cat([one.tokens for one in late]), out.tokens)
    plain = decode(model, PROMPTS, sampler, **options)
    assert torch.equal(plain.tokens[1], out.tokens[1])
