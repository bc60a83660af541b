"""Models on a pretended accelerator decode as on the CPU, token by token and forward by forward.

On "cuda" a tensor on the wrong device is refused, and forwards are captured. Apple's device "mps"
refuses float64.
"""

import copy
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from plugins_under_test import CACHES, INSTANCES
from pretended import DEVICE, MPS, Accelerator, Pretended
from tiny_models import FAMILIES, LAW_OPTIONS, MODELS
from tiny_models import load_without_tokenizer as load_model
from toys import tiny_llama

from dllm_decode import (
    ARVerify,
    CausalTarget,
    DecodeOutput,
    DelayedCache,
    DraftLength,
    DualCache,
    ForwardInputs,
    FreeCache,
    Gains,
    Guided,
    NGram,
    NoCache,
    PathSearch,
    PrefixCache,
    Sampled,
    SelfVerify,
    Trace,
    Tree,
    decode,
    decode_many,
)
from dllm_decode.models import MaskedTransformer
from dllm_decode.models.graphs.runner import GraphRunner
from samplers import ConfidenceThreshold, FixedSchedule, Wino
from samplers.logits.float64 import has_float64, widest
from samplers.logits.noise import uniform
from samplers.logits.statistics import draw, log_probability

PROMPTS = [[17, 40, 41, 300, 5, 77], [99], [7, 7, 250, 31, 12, 13, 14, 444, 90]]
OPTIONS: dict[str, Any] = {"gen_length": 8, "block_length": 4}
COSTS = (
    "nfe", "query_positions", "forwards", "target_nfe", "target_forwards", "drafted", "accepted"
)  # fmt: skip
KINDS = ("cuda", "mps")


def in_turn(cases: Any) -> Any:
    """Gives the first case of each kind a device and a family in turn; all others are slow."""
    pairs = [(kind, family) for family in FAMILIES for kind in KINDS]
    seen, found = set[type](), []
    for place, case in enumerate(cases):
        is_new = isinstance(case, str) or type(case) not in seen
        seen.add(type(case))
        for number, (kind, family) in enumerate(pairs):
            marks = () if is_new and place % len(pairs) == number else pytest.mark.slow
            name = f"{case!r}-{kind}-{family}"
            found.append(pytest.param(case, kind, family, id=name, marks=marks))
    return found


class Recorder:
    """Captures a forward as CUDA would: without waiting, and on the tensors that it has seen."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.num_replayed = 0

    def __call__(self, run: Any, inputs: ForwardInputs) -> Any:
        def replay(*, counts: bool = True) -> torch.Tensor:
            self.num_replayed += counts
            with self.accelerator.capturing():
                return run(inputs)

        run(inputs)
        replay(counts=False)
        return replay


class Pair(NamedTuple):
    """One model on the CPU, and on an accelerator that it has to itself."""

    here: MaskedTransformer
    there: MaskedTransformer
    accelerator: Accelerator

    def decode(self, sampler: Any, *, num_times: int = 1, **options: Any) -> DecodeOutput:
        options = {"prompts": PROMPTS, "sampler": sampler, **OPTIONS, **options}
        on_cpu = answers(self.here, options)
        with self.accelerator:
            for _ in range(num_times):
                for one, other in zip(on_cpu, answers(self.there, options), strict=True):
                    compare(one, other)
        return on_cpu[0]


def answers(model: MaskedTransformer, options: dict[str, Any]) -> list[DecodeOutput]:
    return (
        list(decode_many(model, **options)) if "num_rows" in options else [decode(model, **options)]
    )


def compare(on_cpu: DecodeOutput, out: DecodeOutput) -> None:
    for name in ("tokens", *COSTS):
        expected, found = vars(on_cpu)[name], vars(out)[name]
        assert not isinstance(found, Pretended), name
        assert torch.equal(torch.as_tensor(expected), torch.as_tensor(found)), name


def pair(
    source: Any, kind: str = "cuda", *, graphs: bool = False, dtype: Any = None, **options: Any
) -> Pair:
    dtype = dtype or {"cuda": torch.float64, "mps": torch.float32}[kind]
    here = load_model(source, dtype=dtype, **options)[0]
    with Accelerator({"cuda": DEVICE, "mps": MPS}[kind]) as accelerator:
        there = load_model(source, device=kind, dtype=dtype, **options)[0]
    there.graphs = graphs
    there._runner = GraphRunner(capture=Recorder(accelerator))
    assert there.device == accelerator.device
    return Pair(here, there, accelerator)


@pytest.fixture(scope="module")
def pairs() -> dict[tuple[str, str], Pair]:
    return {
        (kind, family): pair(MODELS / family, kind, **LAW_OPTIONS[family])
        for kind in KINDS
        for family in FAMILIES
    }


@pytest.fixture(scope="module")
def played() -> dict[str, Pair]:
    return {
        family: pair(MODELS / family, graphs=True, **LAW_OPTIONS[family]) for family in FAMILIES
    }


@pytest.mark.parametrize(("sampler", "kind", "family"), in_turn(INSTANCES))
def test_every_sampler_decodes_as_on_the_cpu(
    sampler: Any, kind: str, family: str, pairs: dict[tuple[str, str], Pair]
) -> None:
    """Noise and a few rules were in float64, which Apple's devices refuse."""
    if sampler.leave_one_out:
        # On a model that cannot see what it verifies, and without a cache.
        pairs[kind, "llada"].decode(sampler, temperature=0.7)
        return
    cache = PrefixCache() if sampler.scope == "suffix" else DualCache()
    pairs[kind, family].decode(sampler, temperature=0.7 * (family != "sdar"), cache=cache)


DRAFTED: dict[str, dict[str, Any]] = {
    evaluate: {"verifier": SelfVerify(3, evaluate), "stop_at_eos": False}
    for evaluate in ("batch", "tree", "sequential")
}
MANY: dict[str, Any] = {"prompts": [*PROMPTS, [62, 8, 400, 21]], "num_rows": 2}
WAYS: dict[str, dict[str, Any]] = {
    **{repr(cache): {"cache": cache, "stop_at_eos": False} for cache in (NoCache(), *CACHES)},
    **DRAFTED,
    "rows come and go": MANY,
    "rows come and go, dual cache": {**MANY, "cache": DualCache()},
    "rows come and go, tree": {**MANY, "cache": FreeCache(), "verifier": SelfVerify(3, "tree")},
    "rows come and go, delayed": {**MANY, "cache": DelayedCache(), "temperature": 0.5},
}


@pytest.mark.parametrize(("way", "kind", "family"), in_turn(WAYS))
def test_every_way_to_decode_is_that_of_the_cpu(
    way: str, kind: str, family: str, pairs: dict[tuple[str, str], Pair]
) -> None:
    pairs[kind, family].decode(FixedSchedule(4), **WAYS[way])


@pytest.mark.exhaustive(6)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", WAYS)
def test_captured_forwards_decode_as_on_the_cpu(
    way: str, family: str, played: dict[str, Pair]
) -> None:
    recorder = played[family].there._runner.capture
    before = recorder.num_replayed
    # The first time, forwards run as ever; the second, they are recorded.
    played[family].decode(FixedSchedule(4), num_times=2, **WAYS[way])
    cache = WAYS[way].get("cache", NoCache())
    if not cache.needs_kv_cache:
        assert recorder.num_replayed == before
    # Under others, rows may compute different numbers of columns, and no graph has several groups.
    elif isinstance(cache, PrefixCache | DualCache | FreeCache):
        assert recorder.num_replayed > before


@pytest.mark.parametrize(("evaluate", "kind", "family"), in_turn(DRAFTED))
def test_self_verification_decodes_as_on_the_cpu(
    evaluate: str, kind: str, family: str, pairs: dict[tuple[str, str], Pair]
) -> None:
    model, options = pairs[kind, family], DRAFTED[evaluate]
    out = model.decode(ConfidenceThreshold(0.4), cache=DualCache(), temperature=0.5, **options)
    assert out.drafted.sum() > 0, "nothing was drafted"
    pairs[kind, "llada"].decode(Wino(0.3), **options)


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
    "guided": lambda target: Guided(target, 4, top_k=200),
}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(("judge", "kind", "family"), in_turn(JUDGES))
def test_causal_targets_judge_as_on_the_cpu(
    judge: str, kind: str, family: str, temperature: float, pairs: dict[tuple[str, str], Pair]
) -> None:
    model, make = pairs[kind, family], JUDGES[judge]
    network = copy.deepcopy(tiny_llama(model.here.vocab_size, 4)).to(model.here.dtype)
    options: Any = {**OPTIONS, "temperature": temperature, "cache": FreeCache()}
    on_cpu = make(CausalTarget(copy.deepcopy(network), name="tiny llama"))
    expected = decode(model.here, PROMPTS, FixedSchedule(3), verifier=on_cpu, **options)
    with model.accelerator:
        there = make(CausalTarget(network.to(kind), name="tiny llama"))
        found = decode(model.there, PROMPTS, FixedSchedule(3), verifier=there, **options)
    compare(expected, found)
    assert found.drafted.sum() > 0


GIVEN: dict[str, dict[str, Any]] = {
    "stops": {},
    "truncates": {"truncate_at_eos": True, "cache": FreeCache("official")},
    "goes on": {"stop_at_eos": False, "cache": DelayedCache(warm_up=1)},
}


@pytest.mark.parametrize(("given", "kind", "family"), in_turn(GIVEN))
def test_templates_ends_and_observers_work_as_on_the_cpu(
    given: str, kind: str, family: str, pairs: dict[tuple[str, str], Pair]
) -> None:
    model = pairs[kind, family]
    mask, eos = model.here.mask_id, model.here.eos_ids[0]
    # An EOS that is given ends the first answer before its last block.
    options: Any = {
        **OPTIONS, **GIVEN[given], "templates": [[mask] * 6 + [eos], [44, mask, 17], []],
    }  # fmt: skip
    here, there = (Trace(), Gains()), (Trace(), Gains())
    expected = decode(model.here, PROMPTS, FixedSchedule(2), observers=here, **options)
    with model.accelerator:
        found = decode(model.there, PROMPTS, FixedSchedule(2), observers=there, **options)
        gains = there[1].by_row()
    compare(expected, found)
    assert here[1].by_row() == gains
    assert here[0].revisions == there[0].revisions
    for row, steps in here[0].steps.items():
        assert torch.equal(steps, there[0].steps[row])
        one, other = (trace.confidences[row].nan_to_num(2) for trace in (here[0], there[0]))
        torch.testing.assert_close(one, other, check_dtype=False)


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
        found = uniform(keys.to("mps")).cpu()
    assert found.dtype == torch.float32
    assert (found.double() - exact).abs().max() <= 2.0**-24
    # Strictly inside (0, 1), and in the same order but for those that became equal.
    assert found.min() > 0.0
    assert found.max() < 1.0
    ordered = found[exact.argsort()]
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
