"""Models on a pretended accelerator decode as on the CPU, and a step is cheap there.

On "cuda" a tensor on the wrong device is refused; in each step the CPU waits once, and there are
few operations besides the model. Apple's device "mps" refuses float64.
"""

import copy
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from itertools import product
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from plugins_under_test import CACHES, INSTANCES
from pretended import DEVICE, MPS, PROMPTS, Accelerator, Operations, Pretended
from tiny_models import FAMILIES, LAW_OPTIONS, MODELS, tiny
from tiny_models import load_without_tokenizer as load_model
from toys import tiny_llama

from dllm_decode import (
    AdaptiveBlocks,
    ARVerify,
    BlockSchedule,
    CachePolicy,
    CausalTarget,
    DecodeConfig,
    DecodeOutput,
    DelayedCache,
    DraftLength,
    DualCache,
    FreeCache,
    Gain,
    Gains,
    Guided,
    MultiBlock,
    NGram,
    NoCache,
    PathSearch,
    PrefixCache,
    Sampled,
    SelfVerify,
    Sequential,
    StepEvent,
    SubBlocks,
    Trace,
    Tree,
    decode,
    decode_many,
    new_decoder,
    score,
)
from dllm_decode.models import MaskedTransformer
from dllm_decode.rollouts.rollout_groups import rollouts_of
from samplers import ConfidenceThreshold, FixedSchedule, Learn2PD, Prophet, Sampler
from samplers.facts import Fact
from samplers.logits.float64 import has_float64, widest
from samplers.logits.noise import uniform
from samplers.logits.statistics import draw, log_probability

OPTIONS: dict[str, Any] = {"gen_length": 8, "block_length": 4}
COSTS = (
    "nfe", "query_positions", "forwards", "target_nfe", "target_forwards", "drafted", "accepted"
)  # fmt: skip
KINDS = ("cuda", "mps")


def in_turn(cases: Any) -> Any:
    """Gives the first case of each kind a device and a family in turn; all others are slow."""
    pairs = [(kind, family) for family in FAMILIES for kind in KINDS]
    seen, params = set[type](), []
    for place, case in enumerate(cases):
        is_new = isinstance(case, str) or type(case) not in seen
        seen.add(type(case))
        for number, (kind, family) in enumerate(pairs):
            marks = () if is_new and place % len(pairs) == number else pytest.mark.slow
            name = f"{case!r}-{kind}-{family}"
            params.append(pytest.param(case, kind, family, id=name, marks=marks))
    return params


class Pair(NamedTuple):
    """One model on the CPU, and on an accelerator that it has to itself."""

    here: MaskedTransformer
    there: MaskedTransformer
    accelerator: Accelerator

    def decode(self, sampler: Any, *, num_times: int = 1, **options: Any) -> DecodeOutput:
        options = {"prompts": PROMPTS, "sampler": sampler, **OPTIONS, **options}
        on_cpu = watched(self.here, options)
        with self.accelerator:
            for _ in range(num_times):
                compare(on_cpu, watched(self.there, options))
        return on_cpu.outputs[0]

    def waits(self, sampler: Any, *, observers: Any = (), **options: Any) -> list[Counter[str]]:
        """Returns the waits, observers' included, of each step before which no row came or left."""
        waits: list[Counter[str]] = []
        last: list[int] | None = None

        def count(event: StepEvent) -> None:
            nonlocal last
            current = [row.request.index for row in event.rows]
            if current == last:
                waits.append(Counter(self.accelerator.waits))
            last = current
            self.accelerator.waits.clear()

        arguments = {"prompts": PROMPTS, "gen_length": 16, "block_length": 8, **options}
        with self.accelerator:
            decode(
                self.there, sampler=sampler, stop_at_eos=False, observers=[*observers, count],
                **arguments,
            )  # fmt: skip
        return waits


class Watched(NamedTuple):
    outputs: list[DecodeOutput]
    trace: Trace
    gains: dict[int, Gain]


def watched(model: MaskedTransformer, options: dict[str, Any]) -> Watched:
    trace, gains = Trace(), Gains()
    options = {**options, "observers": (trace, gains)}
    is_many = "num_rows" in options
    outputs = list(decode_many(model, **options)) if is_many else [decode(model, **options)]
    return Watched(outputs, trace, gains.by_row())


def compare(on_cpu: Watched, there: Watched) -> None:
    for cpu_output, output in zip(on_cpu.outputs, there.outputs, strict=True):
        for name in ("tokens", *COSTS):
            expected, found = vars(cpu_output)[name], vars(output)[name]
            assert not isinstance(found, Pretended), name
            assert torch.equal(torch.as_tensor(expected), torch.as_tensor(found)), name
    assert on_cpu.gains == there.gains
    assert on_cpu.trace.revisions == there.trace.revisions
    for row, steps in on_cpu.trace.steps.items():
        assert torch.equal(steps, there.trace.steps[row])
        confidences = (trace.confidences[row] for trace in (on_cpu.trace, there.trace))
        torch.testing.assert_close(*confidences, equal_nan=True)


def pair(source: Any, kind: str = "cuda", *, dtype: Any = None, **options: Any) -> Pair:
    dtype = dtype or {"cuda": torch.float64, "mps": torch.float32}[kind]
    here = load_model(source, dtype=dtype, **options)[0]
    with Accelerator({"cuda": DEVICE, "mps": MPS}[kind]) as accelerator:
        there = load_model(source, device=kind, dtype=dtype, **options)[0]
    assert there.device == accelerator.device
    return Pair(here, there, accelerator)


@cache
def pair_of(kind: str, family: str) -> Pair:
    return pair(MODELS / family, kind, **LAW_OPTIONS[family])


DRAFTED: dict[str, dict[str, Any]] = {
    evaluate: {"verifier": SelfVerify(3, evaluate), "stop_at_eos": False}
    for evaluate in ("batch", "tree")
}


@pytest.mark.parametrize(("sampler", "kind", "family"), in_turn(INSTANCES))
def test_every_sampler_decodes_as_on_the_cpu(sampler: Any, kind: str, family: str) -> None:
    """Noise and a few rules were in float64, which Apple's devices refuse."""
    if Fact.LEAVE_ONE_OUT in sampler.needs:
        # Such samplers decode with LLaDA only, and without a cache.
        pair_of(kind, "llada").decode(sampler, temperature=0.7)
        return
    cache = PrefixCache() if sampler.scope == "suffix" else DualCache()
    pair_of(kind, family).decode(sampler, temperature=0.7 * (family != "sdar"), cache=cache)


MANY: dict[str, Any] = {"prompts": [*PROMPTS, [62, 8, 400, 21]], "num_rows": 2}
WAYS: dict[str, dict[str, Any]] = {
    **{repr(cache): {"cache": cache, "stop_at_eos": False} for cache in (NoCache(), *CACHES)},
    **{
        evaluate: options | {"cache": DualCache(), "temperature": 0.5}
        for evaluate, options in DRAFTED.items()
    },
    "rows come and go": MANY,
    "rows come and go, dual cache": {**MANY, "cache": DualCache()},
    "rows come and go, tree": {**MANY, "cache": FreeCache(), "verifier": SelfVerify(3, "tree")},
    "rows come and go, delayed": {**MANY, "cache": DelayedCache(), "temperature": 0.5},
}


GIVEN: dict[str, dict[str, Any]] = {
    "stops": {},
    "truncates": {"truncate_at_eos": True, "cache": FreeCache()},
    "goes on": {"stop_at_eos": False, "cache": DelayedCache(warm_up=1)},
}


@pytest.mark.parametrize(("way", "kind", "family"), in_turn([*WAYS, *GIVEN]))
def test_every_way_to_decode_is_that_of_the_cpu(way: str, kind: str, family: str) -> None:
    options, model = {**WAYS, **GIVEN}[way], pair_of(kind, family)
    if way in GIVEN:
        mask, eos = model.here.mask_id, model.here.eos_ids[0]
        # An EOS that is given ends the first answer before its last block.
        options = options | {"templates": [[mask] * 6 + [eos], [44, mask, 17], []]}
    narrows = Fact.DECIDES_ON_PART in options.get("cache", NoCache()).needs
    out = model.decode(ConfidenceThreshold(0.3) if narrows else FixedSchedule(4), **options)
    assert "verifier" not in options or out.drafted.sum() > 0, "nothing was drafted"


JUDGES: dict[str, Any] = {
    "search": lambda target: ARVerify(target, DraftLength(2, 5)),
    "search by counts": lambda target: ARVerify(
        target,
        DraftLength(3, 6),
        PathSearch(proxy=NGram(target.vocab_size).fit(PROMPTS), eos="always"),
    ),
    "look again": lambda target: ARVerify(target, DraftLength(4, 4), PathSearch(num_forwards=3)),
    "tree": lambda target: ARVerify(target, DraftLength(4, 4), Tree(budget=8)),
    "sample": lambda target: ARVerify(target, DraftLength(2, 4), Sampled()),
    "guided": lambda target: Guided(target, 4, ratio=0.0),
}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(("judge", "kind", "family"), in_turn(JUDGES))
def test_causal_targets_judge_as_on_the_cpu(
    judge: str, kind: str, family: str, temperature: float
) -> None:
    model, make = pair_of(kind, family), JUDGES[judge]
    network = copy.deepcopy(tiny_llama(model.here.vocab_size, 4)).to(model.here.dtype)
    options: Any = {
        **OPTIONS, "prompts": PROMPTS, "sampler": FixedSchedule(3), "temperature": temperature,
        "cache": FreeCache(),
    }  # fmt: skip
    on_cpu = make(CausalTarget(copy.deepcopy(network), name="tiny llama"))
    expected = watched(model.here, options | {"verifier": on_cpu})
    with model.accelerator:
        there = make(CausalTarget(network.to(kind), name="tiny llama"))
        compare(expected, watched(model.there, options | {"verifier": there}))
    assert expected.outputs[0].drafted.sum() > 0


@pytest.mark.parametrize("has_fp64", [True, False])
def test_some_of_intels_devices_have_no_float64(
    has_fp64: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = SimpleNamespace(has_fp64=has_fp64)
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda device: properties)
    device = torch.device("xpu", 62 + has_fp64)
    assert has_float64(device) == has_fp64
    assert widest(device) == (torch.float64 if has_fp64 else torch.float32)


def test_uniform_numbers_without_float64_are_close_to_those_with_it() -> None:
    keys = torch.arange(200_000) * 7919
    exact = uniform(keys)
    with Accelerator(MPS):
        single = uniform(keys.to("mps")).cpu()
    assert single.dtype == torch.float32
    assert (single.double() - exact).abs().max() <= 2.0**-24
    # Strictly inside (0, 1), and in the same order but for those that became equal.
    assert single.min() > 0.0
    assert single.max() < 1.0
    ordered = single[exact.argsort()]
    assert (ordered[1:] >= ordered[:-1]).all()
    assert (ordered[1:] == ordered[:-1]).any(), "nothing was rounded"


def test_draws_without_float64_are_the_same_tokens() -> None:
    torch.manual_seed(0)
    logits, keys = torch.randn(3, 5, 4099) * 4.0, torch.arange(15).view(3, 5) * 104729
    for temperature in (0.05, 0.7, 1.3):
        expected = draw(logits, temperature, keys)
        logs = log_probability(logits, expected, temperature)
        with Accelerator(MPS):
            there = draw(logits.to("mps"), temperature, keys.to("mps"))
            assert there.device == MPS
            found = log_probability(logits.to("mps"), there, temperature).cpu()
        assert torch.equal(there.cpu(), expected)
        assert found.dtype == torch.float32
        assert torch.equal(found, logs.float())


@pytest.mark.parametrize("num_steps", [5, 7, 64, 1000])
def test_quotas_of_dream_without_float64_are_the_same(num_steps: int) -> None:
    """In float32, floor(m (1 - t' / t)) is one less for some m."""
    sampler, masks = FixedSchedule(num_steps, schedule="dream"), torch.arange(1, 513)
    for step in (0, 1, num_steps - 1):
        steps = torch.full_like(masks, step)
        expected = sampler._dream_quota(masks, steps)
        with Accelerator(MPS):
            found = sampler._dream_quota(masks.to("mps"), steps.to("mps"))
            assert all(part.device == MPS for part in found)
        assert all(torch.equal(a, b.cpu()) for a, b in zip(expected, found, strict=True))


def test_weights_in_float64_are_refused_there() -> None:
    with Accelerator(MPS), pytest.raises(ValueError, match="float64, which mps devices do not"):
        load_model(MODELS / "llada", dtype="float64", device="mps")


READS = {"tolist in round._on_host": 1}


@pytest.mark.exhaustive(18)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cache", [NoCache(), *CACHES], ids=repr)
def test_the_host_waits_once_a_step_with_every_cache(cache: CachePolicy, family: str) -> None:
    """Once only the device knew which columns some policies compute; so the host read twice."""
    # One token a step.
    waits = pair_of("cuda", family).waits(ConfidenceThreshold(1.0), cache=cache, gen_length=8)
    assert len(waits) >= 5
    assert [step for step in waits if step != READS] == []


DRAWN: Any = {"sampler": FixedSchedule(4), "temperature": 0.7}
PROPHET = Prophet(FixedSchedule(4), thresholds=(99.0, 99.0, 99.0), answer_start=0, answer_length=16)
MARKED = replace(PROPHET, answer_start=None, marker=(41, 300))
# The host learns whether the proposals after the block are to be drawn.
ASKED = {"__bool__ in prophet.Prophet.step": 1}
# Family, options, the least number of steps, and for what the host waits besides its one look.
STEPS: dict[str, tuple[str, dict[str, Any], int, dict[str, int]]] = {
    **{
        repr(blocks): ("llada", {"sampler": ConfidenceThreshold(0.9), "blocks": blocks}, 3, {})
        for blocks in (MultiBlock(8, 0.1, 0.5, forces="every"),
                       AdaptiveBlocks((3, 5, 30), 0.05, 8), SubBlocks(8, 3))
    },
    "tokens are drawn": ("dream", DRAWN, 6, {}),
    "commits are recorded": ("llada", DRAWN | {"return_logprobs": True}, 6, {}),
    "commits are recorded, cut": ("llada", DRAWN | {"return_logprobs": True, "top_p": 0.8}, 6, {}),
    "gains": ("llada", {"sampler": FixedSchedule(4), "observers": [Gains()]}, 6, {}),
    "trace": ("llada", {"sampler": FixedSchedule(4), "observers": [Trace()]}, 6,
              {"copy to the host in recorders.Trace.__call__": 5}),
    **{
        repr(sampler): ("llada", {"sampler": sampler}, 6, {}) for sampler in (PROPHET, MARKED)
    },
    "prophet draws": ("llada", DRAWN | {"sampler": PROPHET}, 6, ASKED),
    "prophet with a marker draws": ("llada", DRAWN | {"sampler": MARKED}, 6, ASKED),
}  # fmt: skip


@pytest.mark.parametrize("way", STEPS)
def test_the_host_reads_once_a_step(way: str) -> None:
    family, options, least, more = STEPS[way]
    waits = pair_of("cuda", family).waits(**options)
    assert len(waits) >= least
    assert [step for step in waits if step != READS | more] == []


@pytest.mark.exhaustive(14)
@pytest.mark.parametrize("sampler", INSTANCES, ids=repr)
def test_the_host_waits_once_a_step_with_every_sampler(sampler: Any) -> None:
    waits = pair_of("cuda", "llada").waits(sampler)
    assert [step for step in waits if step != READS] == []
    # At thresholds this low, or of infinity, a block is one step.
    in_one_step = ("inf", "0.3)", "quota='least'")
    assert waits or any(part in repr(sampler) for part in in_one_step)


@pytest.mark.parametrize(
    ("evaluate", "prompts"), [("batch", PROMPTS[:1]), ("tree", PROMPTS[:1]), ("batch", PROMPTS)]
)
def test_self_verification_waits_at_most_twice_a_step(
    evaluate: Any, prompts: list[list[int]]
) -> None:
    """Once the host waited 14 to 19 times a forward: for every draft, and to tell states apart."""
    options: Any = {"verifier": SelfVerify(4, evaluate), "cache": DualCache(), "prompts": prompts}
    waits = pair_of("cuda", "llada").waits(FixedSchedule(8), **options)
    drafts = READS | {"tolist in self_verify.SelfVerify._draft": 1}
    assert waits
    assert [step for step in waits if step not in (READS, drafts)] == []
    assert any(step == drafts for step in waits)


def test_a_filter_asks_nothing_once_it_is_there() -> None:
    options: Any = {"prompts": [[5, 6, 7], [8]], "gen_length": 32, "block_length": 32}
    waits = pair("mini").waits(Learn2PD("mini", 0.9), **options)
    assert waits
    assert [step for step in waits if step != READS] == []


def operations_a_step(sampler: Sampler, prompts: list[list[int]], **options: Any) -> float:
    """Counts the operations outside of the model, views included."""
    model, calls = tiny("llada"), list[None]()
    operations = Operations(lambda *_: calls.append(None))
    with pytest.MonkeyPatch.context() as patch, operations:
        patch.setattr(model, "predict", operations.left_out(model.predict))
        out = decode(
            model, prompts, sampler, gen_length=32, block_length=32, stop_at_eos=False, **options
        )
    assert out.forwards >= 30
    return len(calls) / out.forwards


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize("cache", [NoCache(), PrefixCache(), DualCache(), FreeCache()], ids=repr)
@pytest.mark.parametrize("sampler", [FixedSchedule(32), ConfidenceThreshold(1.0)], ids=repr)
@pytest.mark.parametrize("num_rows", [1, 5])
def test_a_step_is_few_operations_beside_the_model(
    num_rows: int, sampler: Sampler, cache: CachePolicy
) -> None:
    """Once a step took 180 operations, although most results are the same in a whole block."""
    prompts = [[3, 4, 5, *range(6, 6 + row)] for row in range(num_rows)]
    assert 40 < operations_a_step(sampler, prompts, cache=cache) < 135


@cache
def operations_of(blocks: BlockSchedule) -> float:
    return operations_a_step(ConfidenceThreshold(1.0), [[3, 4, 5]], blocks=blocks)


@pytest.mark.parametrize(
    "blocks", [MultiBlock(32, 1.0, 1.0), AdaptiveBlocks((5,), 1.0), SubBlocks(32, 8)], ids=repr
)
def test_a_schedule_costs_few_operations_where_nothing_opens(blocks: BlockSchedule) -> None:
    """MultiBlock cost 75 operations a step: it decided on the device, each step, what is open."""
    assert operations_of(blocks) - operations_of(Sequential()) < 12


@pytest.mark.parametrize(("kind", "family"), list(product(KINDS, FAMILIES)))
def test_rollouts_are_scored_there_as_on_the_cpu(kind: str, family: str) -> None:
    here, there, accelerator = pair_of(kind, family)
    writes, config = [], DecodeConfig(gen_length=12, block_length=4, temperature=0.7)
    for model, place in ((here, nullcontext()), (there, accelerator)):
        with place, torch.no_grad():
            decoder = new_decoder(model, ConfidenceThreshold(0.3), config=config)
            requests = [decoder.request(prompt, n) for n, prompt in enumerate(PROMPTS)]
            rollouts = [outcome.rollout for outcome in rollouts_of(decoder, requests, 2)]
            scores = score(model, rollouts, law="drawn")
            assert scores.difference < (1e-9 if kind == "cuda" else 1e-4)
            writes.append([[write[:3] for write in rollout.writes] for rollout in rollouts])
    assert writes[0] == writes[1]
