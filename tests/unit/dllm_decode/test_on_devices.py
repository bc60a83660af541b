"""Models on a pretended accelerator decode as on the CPU, token by token and forward by forward.

On "cuda" a tensor on the wrong device is refused, and forwards are captured. Apple's device "mps"
refuses float64.
"""

import copy
from typing import Any, NamedTuple

import pytest
import torch
from plugins_under_test import INSTANCES
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
    load_target,
)
from dllm_decode.models import MaskedTransformer
from dllm_decode.models.graphs.runner import GraphRunner
from dllm_decode.models.network import fused as choice
from samplers import ConfidenceThreshold, FixedSchedule, Klass, Learn2PD, LocalLeap, Wino

PROMPTS = [[17, 40, 41, 300, 5, 77], [99], [7, 7, 250, 31, 12, 13, 14, 444, 90]]
OPTIONS: dict[str, Any] = {"gen_length": 8, "block_length": 4}
CACHES = (
    NoCache(), PrefixCache(2), DualCache(), DualCache(2, before=1, after=1), FreeCache(),
    FreeCache("official"), DelayedCache(), DelayedCache(3, 1),
)  # fmt: skip
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
        run(inputs)
        with self.accelerator.capturing():
            run(inputs)

        def replay() -> torch.Tensor:
            self.num_replayed += 1
            with self.accelerator.capturing():
                return run(inputs)

        return replay


class Pair(NamedTuple):
    """One model on the CPU, and on an accelerator that it has to itself."""

    here: MaskedTransformer
    there: MaskedTransformer
    accelerator: Accelerator

    def decode(self, sampler: Any, *, num_times: int = 1, **options: Any) -> DecodeOutput:
        options = {"prompts": PROMPTS, **OPTIONS, **options}
        on_cpu = decode(self.here, sampler=sampler, **options)
        with self.accelerator:
            for _ in range(num_times):
                compare(on_cpu, decode(self.there, sampler=sampler, **options))
        return on_cpu


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


@pytest.mark.parametrize(("cache", "kind", "family"), in_turn(CACHES))
def test_every_cache_decodes_as_on_the_cpu(
    cache: Any, kind: str, family: str, pairs: dict[tuple[str, str], Pair]
) -> None:
    pairs[kind, family].decode(FixedSchedule(4), cache=cache, stop_at_eos=False)


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cache", CACHES, ids=repr)
def test_captured_forwards_decode_as_on_the_cpu(
    cache: Any, family: str, played: dict[str, Pair]
) -> None:
    recorder = played[family].there._runner.capture
    before = recorder.num_replayed
    # The first time, forwards run as ever; the second, they are recorded.
    played[family].decode(FixedSchedule(4), num_times=2, cache=cache, stop_at_eos=False)
    # Under DelayedCache rows compute different numbers of columns, and no graph has several groups.
    if not isinstance(cache, DelayedCache):
        has_cache = not isinstance(cache, NoCache)
        assert (recorder.num_replayed > before) == has_cache, "replays"


@pytest.mark.parametrize(("evaluate", "kind", "family"), in_turn(["batch", "tree", "sequential"]))
def test_self_verification_decodes_as_on_the_cpu(
    evaluate: Any, kind: str, family: str, pairs: dict[tuple[str, str], Pair],
    played: dict[str, Pair],
) -> None:  # fmt: skip
    options: dict[str, Any] = {"verifier": SelfVerify(3, evaluate), "stop_at_eos": False}
    model = pairs[kind, family]
    out = model.decode(FixedSchedule(4), **options)
    assert out.drafted.sum() > 0, "nothing was drafted"
    # One of the families' random weights never guess right.
    assert out.accepted.sum() > 0 or family == "fast_dllm_v2", "no draft was accepted"
    model.decode(ConfidenceThreshold(0.4), cache=DualCache(), temperature=0.5, **options)
    played[family].decode(FixedSchedule(2), num_times=2, cache=FreeCache(), **options)
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
        **OPTIONS,
        **GIVEN[given],
        "templates": [[mask] * 6 + [eos], [44, mask, 17], []],
    }
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


SHARED: dict[str, dict[str, Any]] = {
    "no cache": {},
    "dual cache": {"cache": DualCache()},
    "tree": {"cache": FreeCache(), "verifier": SelfVerify(3, "tree")},
    "delayed cache": {"cache": DelayedCache(), "temperature": 0.5},
}


@pytest.mark.parametrize(("shared", "kind", "family"), in_turn(SHARED))
def test_rows_that_come_and_go_are_decoded_as_on_the_cpu(
    shared: str, kind: str, family: str, pairs: dict[tuple[str, str], Pair], played: dict[str, Pair]
) -> None:
    options: Any = {**OPTIONS, **SHARED[shared], "num_rows": 2}
    prompts = [*PROMPTS, [62, 8, 400, 21]]
    for model in (pairs[kind, family], played[family]):
        expected = list(decode_many(model.here, prompts, FixedSchedule(4), **options))
        with model.accelerator:
            found = list(decode_many(model.there, prompts, FixedSchedule(4), **options))
        for on_cpu, out in zip(expected, found, strict=True):
            compare(on_cpu, out)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_dtypes_find_no_kernel_and_fall_back(dtype: torch.dtype) -> None:
    def decode_twice() -> None:
        for sampler in (LocalLeap(0.5, 0.3), Klass(0.4, 0.05)):
            pair(MODELS / "llada", dtype=dtype).decode(sampler, cache=DualCache())

    choice._checked.cache_clear()
    with pytest.warns(UserWarning, match="fused .* must not be used on cuda:63") as caught:
        decode_twice()
    # Once for each operation, not at each use.
    told = [str(each.message) for each in caught]
    assert sorted(set(told)) == sorted(told)


def test_embedded_models_verify_each_other_on_the_accelerator() -> None:
    mini, tokenizer = load_model("mini")
    prompts = [tokenizer.encode("Anna has 3 apples and buys 4."), tokenizer.encode("Tom has 2.")]
    verifier = ARVerify(load_target("mini-ar", tokenizer))
    options: Any = {"gen_length": 24, "block_length": 8, "verifier": verifier}
    expected = decode(mini, prompts, FixedSchedule(2), **options)
    with Accelerator():
        # Its bfloat16 would try kernels that a pretended device cannot run.
        there = load_model("mini", device="cuda", fused=False)[0]
        there.graphs = False
        verifier.target.network.model.to("cuda")
        assert verifier.target.device == DEVICE
        compare(expected, decode(there, prompts, FixedSchedule(2), **options))
    assert expected.accepted.sum() > 0


def test_a_filter_follows_models_to_their_devices() -> None:
    sampler = Learn2PD("mini")
    model, tokenizer = pair("mini"), load_model("mini")[1]
    prompts = [tokenizer.encode("Anna has 3 apples."), tokenizer.encode("Tom")]
    length = sampler.loaded.block_length
    for _ in range(2):
        model.decode(sampler, prompts=prompts, gen_length=length, block_length=length)
