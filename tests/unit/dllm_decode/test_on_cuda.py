"""Checks that need CUDA: torch's kernels there, compiled forwards, and real waits."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from itertools import product
from typing import Any

import pytest
import torch
from plugins_under_test import INSTANCES
from pretended import PROMPTS
from tiny_models import FAMILIES, LAW_OPTIONS, load_tiny, tiny
from torch.nn import functional as F

from dllm_decode import (
    ARVerify,
    CachePolicy,
    DelayedCache,
    DualCache,
    ForwardInputs,
    FreeCache,
    MaskPredictor,
    NoCache,
    PrefixCache,
    SelfVerify,
    StepEvent,
    decode,
    load_model,
    load_target,
)
from dllm_decode.engine.compatibility import refusal_of
from dllm_decode.models.network.context import make_context
from dllm_decode.verify import NoVerifier
from samplers import FixedSchedule, Prophet
from samplers.facts import Fact

DEVICE = "cuda"
OPTIONS: dict[str, Any] = {"gen_length": 16, "block_length": 8, "stop_at_eos": False}
PLAIN = NoVerifier()
CACHES = (NoCache(), PrefixCache(2), DualCache(), FreeCache(), DelayedCache(3, 1))
HALF_AND_SINGLE = (torch.float16, torch.bfloat16, torch.float32)


def mask_of(attend: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns the bias of attention scores, for a model with one query head per key head."""
    columns = torch.arange(attend.shape[1], device=attend.device).expand(len(attend), -1)
    shape = tiny("llada").transformer.config
    inputs = ForwardInputs(columns, columns, columns, attend=attend)
    return make_context(shape, dtype, inputs, torch.zeros(1, device=attend.device)).bias


@pytest.mark.parametrize("dtype", HALF_AND_SINGLE)
def test_what_hides_a_key_stays_finite_in_the_kernels_of_cuda(dtype: torch.dtype) -> None:
    """The kernels turned the least number into -inf, so that a query that saw nothing gave NaN."""
    hidden = mask_of(torch.zeros(1, 4, 4, dtype=torch.bool), dtype).float()
    # The kernels add a score, and change the base to two.
    assert (1.4427 * (hidden - 1000.0)).isfinite().all()
    assert (hidden <= -30_000.0).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALF_AND_SINGLE)
@pytest.mark.parametrize("length", [4, 40, 300])
def test_a_query_that_sees_nothing_answers_something_finite(
    dtype: torch.dtype, length: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    attend = (torch.rand(2, length, length, generator=generator) > 0.5).to(DEVICE)
    attend[:, ::3] = False
    heads = torch.randn(3, 2, 4, length, 64, generator=generator).to(DEVICE, dtype)
    mixed = F.scaled_dot_product_attention(*heads, attn_mask=mask_of(attend, dtype))
    assert mixed.isfinite().all()


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_padding_leaks_nothing_that_is_not_finite(family: str, dtype: torch.dtype) -> None:
    model = load_tiny(family, device=DEVICE, dtype=dtype, **LAW_OPTIONS[family])
    logits: list[torch.Tensor] = []
    for cache in (NoCache(), DualCache()):
        decode(
            model, PROMPTS, FixedSchedule(4), cache=cache,
            observers=[lambda event: logits.append(event.view.logits)], **OPTIONS,
        )  # fmt: skip
    assert not any(part.isnan().any() for part in logits)


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_tokens_are_those_of_the_cpu(family: str, temperature: float) -> None:
    on_cuda = load_tiny(family, device=DEVICE, dtype=torch.float64, **LAW_OPTIONS[family])
    options = OPTIONS | {"temperature": temperature}
    cases: list[tuple[Any, dict[str, Any]]] = [(FixedSchedule(4), {"cache": c}) for c in CACHES]
    cases += [
        (FixedSchedule(6), {"verifier": SelfVerify(3, evaluate)}) for evaluate in ("batch", "tree")
    ]
    cases += [(s, {}) for s in INSTANCES if Fact.LEAVE_ONE_OUT not in s.needs or family == "llada"]
    for sampler, more in cases:
        expected = decode(tiny(family), PROMPTS, sampler, **options, **more)
        found = decode(on_cuda, PROMPTS, sampler, **options, **more)
        assert torch.equal(expected.tokens, found.tokens), (sampler, more)
        assert torch.equal(expected.nfe, found.nfe), (sampler, more)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:TensorFloat32")
@pytest.mark.parametrize("family", ["dream", "sdar"])
def test_compiled_forwards_give_the_tokens_of_eager_ones(family: str) -> None:
    model = load_tiny(family, device=DEVICE, dtype=torch.float32, **LAW_OPTIONS[family])
    for cache in (NoCache(), DualCache(), FreeCache()):
        tokens = []
        for compiled in (False, True):
            model.compiled = compiled
            tokens.append(decode(model, PROMPTS, FixedSchedule(4), cache=cache, **OPTIONS).tokens)
        assert torch.equal(*tokens), cache


@pytest.mark.gpu
@pytest.mark.parametrize("family", [*FAMILIES, "llada_moe"])
def test_recorded_forwards_give_the_tokens_and_costs_of_eager_ones(family: str) -> None:
    # Padded to the shape of their kind, they round differently.
    plain = load_tiny(family, device=DEVICE, dtype=torch.float64, **LAW_OPTIONS[family])
    with_graphs = deepcopy(plain)
    with_graphs.graphs = True
    variants: tuple[dict[str, Any], ...] = (
        {}, {"verifier": SelfVerify(3)}, {"verifier": SelfVerify(3, "tree")}, {"temperature": 0.8},
    )  # fmt: skip
    for cache, more in product(CACHES, variants):
        options = OPTIONS | more | {"cache": cache}
        if refusal_of(plain, FixedSchedule(4), cache, verifier=more.get("verifier", PLAIN)):
            continue
        with warnings.catch_warnings():
            # A kind that could not be recorded stays eager, and says so.
            warnings.simplefilter("error", UserWarning)
            # A kind is recorded when it occurs again.
            eager, *recorded = (
                decode(model, PROMPTS, FixedSchedule(4), **options)
                for model in (plain, *[with_graphs] * 3)
            )
        for out in recorded:
            assert torch.equal(out.tokens, eager.tokens), (cache, more)
            assert torch.equal(out.query_positions, eager.query_positions), (cache, more)
            assert torch.equal(out.nfe, eager.nfe), (cache, more)


@pytest.mark.gpu
def test_threads_that_record_at_once_have_the_eager_tokens() -> None:
    model = load_tiny("llada", device=DEVICE, dtype=torch.float64, **LAW_OPTIONS["llada"])
    caches = (DualCache(), FreeCache())

    def answers(cache: CachePolicy) -> list[list[int]]:
        decoded = (decode(model, PROMPTS, FixedSchedule(4), cache=cache, **OPTIONS) for _ in "abc")
        return [out.tokens.tolist() for out in decoded]

    expected = [answers(cache) for cache in caches]
    model.graphs = True
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(answers, caches)) == expected


@pytest.mark.gpu
def test_a_target_judges_as_on_the_cpu() -> None:
    prompts = [[5, 6, 7, 8], [9]]
    options: dict[str, Any] = {"gen_length": 16, "block_length": 8}
    answers = []
    for device in ("cpu", DEVICE):
        model, tokenizer = load_model("mini", device=device, dtype=torch.float64)
        target = load_target("mini-ar", tokenizer, device=device, dtype=torch.float64)
        out = decode(model, prompts, FixedSchedule(4), verifier=ARVerify(target), **options)
        answers.append(out.tokens)
    assert torch.equal(answers[0], answers[1])


def waits_of(model: MaskPredictor, sampler: Any, **options: Any) -> list[int]:
    """Counts torch's warnings of synchronisation in each step before which no row came or left."""
    waits: list[int] = []
    last: list[tuple[int, object]] | None = None

    def count(event: StepEvent) -> None:
        nonlocal last
        current = [(row.request.index, row.opening) for row in event.rows]
        if current == last:
            waits.append(sum("synchronizing" in str(warning.message) for warning in caught))
        last = current
        caught.clear()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            decode(model, PROMPTS, sampler, observers=[count], **OPTIONS, **options)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return waits


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:TensorFloat32")
@pytest.mark.parametrize(
    ("family", "compiled"), [*((family, False) for family in FAMILIES), ("llada", True)]
)
def test_the_host_waits_once_a_step(family: str, compiled: bool) -> None:
    model = load_tiny(family, device=DEVICE, dtype=torch.bfloat16, **LAW_OPTIONS[family])
    model.compiled = compiled
    prophet = Prophet(FixedSchedule(6), (99.0, 99.0, 99.0), answer_start=0, answer_length=16)
    samplers: tuple[Any, ...] = (FixedSchedule(6), prophet)
    for cache in CACHES[:3] if compiled else CACHES:
        for sampler in samplers if Fact.LOGITS_BEHIND_BLOCK in cache.gives else samplers[:1]:
            # The first decode compiles all kinds of forwards.
            waits_of(model, sampler, cache=cache)
            waits = waits_of(model, sampler, cache=cache)
            assert waits
            assert set(waits) == {1}, (cache, sampler)
