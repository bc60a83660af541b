"""Random decodes of several rows equal those of a slow loop that shares nothing with the engine."""

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

import pytest
import reference
from fuzzed import Watch, answered, note_case
from fuzzed_cases import EOS, Case, CountedToy, config_of, random_model, with_requests
from tiny_models import EVERY_FAMILY

from dllm_decode import CachePolicy, DualCache, NoCache, PrefixCache
from dllm_decode.core.requests import Request, RequestQueue
from dllm_decode.engine.decoding import new_decoder
from dllm_decode.engine.loop import run
from samplers import ConfidenceThreshold, EntropyBound, FixedSchedule, JointThreshold, Sampler, Wino
from samplers.facts import Fact

Kept = Literal["none", "prefix", "dual"]
CACHES: dict[Kept, CachePolicy] = {"none": NoCache(), "prefix": PrefixCache(), "dual": DualCache()}
EVENTS = (
    "ConfidenceThreshold", "FixedSchedule", "EntropyBound", "JointThreshold", "Wino",
    "a token edited in a later block", "a token re-masked", "a given EOS", "a given block",
    "a given answer", "rows of different temperature", "rows of different length", "drawn", "cut",
    "truncated", "Wino in several blocks",
    *(f"{cache}, shift {shift}, causal {causal}" for cache in CACHES for shift in (0, 1)
      for causal in (False, True)),
    *EVERY_FAMILY, "a causal a2d",
)  # fmt: skip


def ruled(rng: random.Random) -> tuple[Sampler, reference.Rule]:
    """Returns a sampler and its rule for the plain loop."""
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


def drawn(rng: random.Random, seed: int) -> tuple[Case, reference.Rule, Kept]:
    """Draws parts until they fit together; returns the rule and the cache for the plain loop."""
    while True:
        sampler, rule = ruled(rng)
        model = random_model(rng)
        kinds: tuple[Kept, ...] = ("none", "prefix", "dual")
        cache = rng.choice(kinds[: 1 if isinstance(model, CountedToy) else 3])
        align = model.causal_block_length
        block_length = align * rng.randint(1, 3) if align else rng.randint(1, 8)
        config = config_of(rng, max(4, block_length, rng.randint(4, 14)), block_length)
        config = config.updated(cfg_scale=0.0)
        try:
            decoder = new_decoder(model, sampler, cache=CACHES[cache], config=config)
            case = with_requests(rng, seed, decoder)
        except ValueError:
            continue
        if not any(request.stop.reads_tokens for request in case.requests):
            return case, rule, cache


def plainly(case: Case, rule: reference.Rule, cache: Kept, asked: Request) -> reference.Reference:
    """Decodes a row by the plain loop."""
    decoder = case.decoder
    row = reference.Row(
        asked.prompt, asked.template, asked.index, decoder.block_length, asked.config
    )
    return reference.decode(
        reference.Looks(decoder.model, cache), row, rule,
        edits=isinstance(decoder.sampler, JointThreshold),
        leaves_out=Fact.LEAVE_ONE_OUT in decoder.sampler.needs,
    )  # fmt: skip


def compare(seeds: Iterable[int]) -> Counter[str]:
    events = Counter[str]()
    for seed in seeds:
        case, rule, cache = drawn(random.Random(seed), seed)
        decoder, watch = case.decoder, Watch(case, events)
        answers = answered(run(decoder, RequestQueue(iter(case.requests)), 2, [watch]), watch)
        for request in case.requests:
            expected, answer = plainly(case, rule, cache, request), answers[request.index]
            context = (seed, decoder, request)
            assert answer.tokens == expected.tokens, context
            assert answer.costs["nfe"] == len(expected.steps), context
            assert [tokens for tokens, _ in answer.steps] == expected.steps, context
            config = request.config
            events["drawn"] += config.temperature > 0.0
            events["cut"] += config.top_p < 1.0 or config.top_k > 0
            events["truncated"] += config.truncate_at_eos and EOS in expected.tokens
        note_case(case, answers, events)
        model, is_long = decoder.model, decoder.config.gen_length > decoder.block_length
        is_causal = model.causal_block_length > 0
        events["Wino in several blocks"] += isinstance(decoder.sampler, Wino) and is_long
        events["a causal a2d"] += model.name.startswith("a2d") and is_causal
        events[f"{cache}, shift {model.logit_shift}, causal {is_causal}"] += 1
    return events


def test_random_decodes_equal_those_of_the_plain_loop() -> None:
    events = compare(range(80))
    assert [name for name in EVENTS if not events[name]] == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_many_random_decodes_equal_those_of_the_plain_loop(seed: int) -> None:
    compare(range(100 * seed, 100 * seed + 100))
