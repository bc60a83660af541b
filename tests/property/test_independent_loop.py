"""Random decodes of several rows equal those of a slow loop that shares nothing with the engine."""

import random
from collections import Counter
from typing import Any, Literal

import pytest
import reference
from fuzzed import Watch
from fuzzed_cases import EOS, MASK, Case, CountedToy, config_of, random_model, with_requests
from tiny_models import EVERY_FAMILY

from dllm_decode import CachePolicy, DualCache, NoCache, PrefixCache
from dllm_decode.core.rows import Request, RequestQueue
from dllm_decode.loop import new_decoder, run
from samplers import ConfidenceThreshold, EntropyBound, FixedSchedule, JointThreshold, Sampler, Wino

Kept = Literal["none", "prefix", "dual"]
CACHES: dict[Kept, CachePolicy] = {"none": NoCache(), "prefix": PrefixCache(), "dual": DualCache()}
EVENTS = (
    "ConfidenceThreshold", "FixedSchedule", "EntropyBound", "JointThreshold", "Wino", "edited",
    "re-masked", "drawn", "cut", "given tokens", "a given EOS", "truncated", "no forward",
    "several tokens in a step", "JointThreshold in several blocks", "Wino in several blocks",
    *(f"{cache}, shift {shift}, causal {causal}" for cache in CACHES for shift in (0, 1)
      for causal in (False, True)),
    *EVERY_FAMILY, "a causal a2d",
)  # fmt: skip


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
    decoder, model = case.decoder, case.decoder.model
    looks = reference.Looks(model, cache)
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
    return reference.decode(everything, row, rule, edits=edits)


def compare(seed: int, number: int) -> Counter[str]:
    rng, events = random.Random(seed), Counter[str]()
    for _ in range(number):
        case, rule, cache = drawn(rng, seed)
        watch = Watch(case)
        answers = {
            answer.request: answer.output
            for answer in run(case.decoder, RequestQueue(iter(case.requests)), 2, [watch])
        }
        for asked in case.requests:
            expected, found = plainly(case, rule, cache, asked), answers[asked.index]
            steps = [tokens for tokens, _ in watch.steps.get(asked.index, [])]
            told = (case.decoder, asked)
            assert found.tokens[0].tolist() == expected.tokens, told
            assert int(found.nfe[0]) == len(expected.steps), told
            assert steps == expected.steps, told
            note(events, case, asked, expected)
            shift, is_causal = case.decoder.model.logit_shift, case.decoder.align > 1
            events[f"{cache}, shift {shift}, causal {is_causal}"] += 1
    return events


def note(events: Counter[str], case: Case, asked: Request, expected: reference.Reference) -> None:
    """Counts what a row has met."""
    name, model = type(case.decoder.sampler).__name__, case.decoder.model
    changes = [
        (was, now)
        for old, new in zip(expected.steps, expected.steps[1:], strict=False)
        for was, now in zip(old, new, strict=True)
        if was not in (MASK, now)
    ]
    events[name] += 1
    events[model.name] += 1
    events["a causal a2d"] += model.name.startswith("a2d") and model.causal_block_length > 0
    events[f"{name} in several blocks"] += asked.config.gen_length > case.decoder.block_length
    events["edited"] += any(now != MASK for _, now in changes)
    events["re-masked"] += any(now == MASK for _, now in changes)
    events["drawn"] += asked.config.temperature > 0.0
    events["cut"] += asked.config.top_p < 1.0 or asked.config.top_k > 0
    events["given tokens"] += any(token != MASK for token in asked.template)
    events["a given EOS"] += any(token in model.eos_ids for token in asked.template)
    events["truncated"] += asked.config.truncate_at_eos and EOS in expected.tokens
    events["several tokens in a step"] += any(
        old.count(MASK) > new.count(MASK) + 1 and EOS not in new
        for old, new in zip(expected.steps, expected.steps[1:], strict=False)
    )
    events["no forward"] += not expected.steps


def test_random_decodes_equal_those_of_the_plain_loop() -> None:
    events = compare(4, 80)
    assert [name for name in EVENTS if not events[name]] == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_many_random_decodes_equal_those_of_the_plain_loop(seed: int) -> None:
    compare(seed, 100)
