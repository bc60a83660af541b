"""Random decodes of several rows equal those of a slow loop that shares nothing with the engine."""

import random
from collections import Counter
from typing import Any, Literal, NamedTuple

import pytest
import reference
from fuzzed import Watch
from fuzzed_cases import (
    EOS,
    MASK,
    WORDS,
    Case,
    CountedToy,
    model_of,
)

from dllm_decode import CachePolicy, DecodeConfig, DualCache, NoCache, PrefixCache
from dllm_decode.core.rows import Request, RequestQueue
from dllm_decode.decoder import Decoder
from dllm_decode.loop import new_decoder, run
from dllm_decode.models.base import MaskPredictor
from samplers import (
    ConfidenceThreshold,
    EntropyBound,
    FixedSchedule,
    JointThreshold,
    Sampler,
    Wino,
)

Kept = Literal["none", "prefix", "dual"]
CACHES: dict[Kept, CachePolicy] = {"none": NoCache(), "prefix": PrefixCache(), "dual": DualCache()}
# Families of each kind: logits of the next column or not, block-causal or not.
FAMILIES = (
    "llada",
    "dream",
    "sdar",
    "fast_dllm_v2",
    "fast_dllm_v2",
    "nemotron_labs_diffusion",
    "toy",
)


EVENTS = (
    "ConfidenceThreshold", "FixedSchedule", "EntropyBound", "JointThreshold", "Wino", "edited",
    "re-masked", "drawn", "cut", "given tokens", "a given EOS", "truncated", "no forward",
    "several tokens in a step", "JointThreshold in several blocks", "Wino in several blocks",
    *(f"{cache}, shift {shift}, causal {causal}" for cache in CACHES for shift in (0, 1)
      for causal in (False, True)),
)  # fmt: skip


class Drawn(NamedTuple):
    """A decode of several rows, and the same for the plain loop."""

    decoder: Decoder
    requests: list[Request]
    rule: reference.Rule
    cache: Kept


def ruled(rng: random.Random) -> tuple[Sampler, reference.Rule]:
    """Returns a sampler and its rule as the plain loop has it."""
    share, edit = rng.choice((0.2, 0.4, 0.7)), rng.choice((0.0, 0.2, 0.4))
    steps, budget = rng.randint(1, 4), rng.randint(0, 4)
    order: Any = rng.choice(("confidence", "margin", "entropy", "random"))
    least, most = rng.randint(1, 3), rng.randint(3, 6)
    pairs: tuple[tuple[Sampler, reference.Rule], ...] = (
        (ConfidenceThreshold(share), reference.threshold_rule(share)),
        (FixedSchedule(steps, order), reference.fixed_rule(steps, order)),
        (EntropyBound(3 * share), reference.entropy_bound_rule(3 * share)),
        (JointThreshold(share, edit, budget), reference.joint_rule(share, edit, budget)),
        (Wino(edit, 0.8, 0.7, least, most), reference.wino_rule(edit, 0.8, 0.7, least, most)),
    )
    return rng.choice(pairs)


def drawn(rng: random.Random) -> Drawn:
    sampler, rule = ruled(rng)
    model = drawn_model(rng, is_wino=isinstance(sampler, Wino))
    has_cache = not isinstance(model, CountedToy) and not isinstance(sampler, Wino)
    cache: Kept = rng.choice(("none", "prefix", "dual")) if has_cache else "none"
    align = model.causal_block_length
    block_length = align * rng.randint(1, 3) if align else rng.randint(1, 8)
    config = DecodeConfig(
        gen_length=rng.randint(max(4, block_length), 14), block_length=block_length,
        confidence_from=rng.choice(("raw", "raw", "tempered")),
        banned_ids=rng.choice(((), (4, 9))), deferred_ids=rng.choice(((), (), (EOS, 7))),
    )  # fmt: skip
    decoder = new_decoder(model, sampler, cache=CACHES[cache], config=config)
    requests = [request(rng, decoder, index) for index in range(rng.randint(2, 4))]
    return Drawn(decoder, requests, rule, cache)


def drawn_model(rng: random.Random, *, is_wino: bool) -> MaskPredictor:
    family = rng.choice(("llada", "llada_moe") if is_wino else FAMILIES)
    align = 0
    if family in ("sdar", "fast_dllm_v2") or (family == "toy" and rng.random() < 0.5):
        align = rng.randint(2, 4)
    ends = rng.choice(((), (13,), (3, 13)))
    return model_of(family, rng.randint(0, 3), rng.choice((2.0, 4.0)), align, ends)


def request(rng: random.Random, decoder: Decoder, index: int) -> Request:
    gen_length = rng.randint(1, decoder.config.gen_length)
    choices = (MASK, MASK, rng.choice(WORDS), rng.choice(WORDS), rng.choice(decoder.model.eos_ids))
    template = rng.choices(choices, (4, 4, 4, 4, 1), k=rng.randint(0, gen_length))
    cut: Any = rng.choice(({}, {}, {}, {"top_k": 3}, {"top_p": 0.7}, {"top_k": 4, "top_p": 0.8}))
    return decoder.request(
        rng.choices(WORDS, k=rng.randint(1, 8)), index,
        template=template if rng.random() < 0.5 else [], gen_length=gen_length,
        seed=rng.randint(-5, 5), temperature=rng.choice((0.0, 0.0, 0.5, 1.5)),
        stop_at_eos=rng.random() < 0.6, truncate_at_eos=rng.random() < 0.3, **cut,
    )  # fmt: skip


def plainly(case: Drawn, asked: Request) -> reference.Reference:
    """Decodes a row by the plain loop."""
    decoder, model = case.decoder, case.decoder.model
    looks = reference.Looks(model, case.cache)
    own = asked.config
    row = reference.Row(
        prompt=asked.prompt, template=asked.template, gen_length=own.gen_length,
        block_length=decoder.block_length, temperature=own.temperature, top_p=own.top_p,
        top_k=own.top_k, seed=own.seed, index=asked.index, stop_at_eos=own.stop_at_eos,
        truncate_at_eos=own.truncate_at_eos,
    )  # fmt: skip
    banned = frozenset((MASK, *model.banned_ids, *decoder.config.banned_ids))
    everything = reference.Asked(
        look=looks, alone=looks.alone if decoder.sampler.leave_one_out else None, mask_id=MASK,
        eos_ids=model.eos_ids, banned=banned,
        align=model.causal_block_length or 1,
        is_tempered=decoder.config.confidence_from == "tempered",
        deferred=decoder.config.deferred_ids,
    )  # fmt: skip
    edits = isinstance(decoder.sampler, JointThreshold)
    return reference.decode(everything, row, case.rule, edits=edits)


def compare(seed: int, number: int) -> Counter[str]:
    rng, events = random.Random(seed), Counter[str]()
    for _ in range(number):
        case = drawn(rng)
        watch = Watch(Case(seed, case.decoder, case.requests, [], 2, [], {}))
        answers = {
            answer.request: answer.output
            for answer in run(case.decoder, RequestQueue(iter(case.requests)), 2, [watch])
        }
        for asked in case.requests:
            expected, found = plainly(case, asked), answers[asked.index]
            steps = [tokens for tokens, _ in watch.steps.get(asked.index, [])]
            told = (case.decoder, asked)
            assert found.tokens[0].tolist() == expected.tokens, told
            assert int(found.nfe[0]) == len(expected.steps), told
            assert steps == expected.steps, told
            note(events, case, asked, expected)
    return events


def note(events: Counter[str], case: Drawn, asked: Request, expected: reference.Reference) -> None:
    """Counts what a row has met."""
    name, model = type(case.decoder.sampler).__name__, case.decoder.model
    changes = [
        (was, now)
        for old, new in zip(expected.steps, expected.steps[1:], strict=False)
        for was, now in zip(old, new, strict=True)
        if was not in (MASK, now)
    ]
    events[name] += 1
    events[f"{name} in several blocks"] += asked.config.gen_length > case.decoder.block_length
    events[f"{case.cache}, shift {model.logit_shift}, causal {bool(case.decoder.align > 1)}"] += 1
    events["edited"] += any(now != MASK for _, now in changes)
    events["re-masked"] += any(now == MASK for _, now in changes)
    events["drawn"] += asked.config.temperature > 0.0
    events["cut"] += asked.config.top_p < 1.0 or asked.config.top_k > 0
    events["given tokens"] += any(token != MASK for token in asked.template)
    events["a given EOS"] += any(token in model.eos_ids for token in asked.template)
    events["truncated"] += asked.config.truncate_at_eos and EOS in expected.tokens
    events["several tokens in a step"] += any(len(commit) > 1 for commit in expected.commits)
    events["no forward"] += not expected.steps


def test_random_decodes_equal_those_of_the_plain_loop() -> None:
    events = compare(0, 100)
    assert [name for name in EVENTS if not events[name]] == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
def test_many_random_decodes_equal_those_of_the_plain_loop(seed: int) -> None:
    compare(seed, 100)
