"""Compiled forwards: one graph, the eager path's tokens, few compilations, and no copied cache."""

import copy
import re
from typing import Any

import pytest
import torch
from tiny_models import LAW_OPTIONS, load_tiny
from torch._dynamo.utils import counters
from torch._inductor.utils import run_and_get_code

from dllm_decode import DualCache, FreeCache, NoCache, decode_many
from dllm_decode.core.model import ForwardInputs
from dllm_decode.models.compiled import _logits, plain_inputs
from samplers import ConfidenceThreshold, Klass

# The warnings are Inductor's own.
pytestmark = [pytest.mark.untyped, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

NEAR: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-3}
PROMPTS = [[5, 6, 7, 8, 9], [10, 11], [12, 13, 14, 15, 16, 17, 18], [19, 20, 21]]
OPTIONS: dict[str, Any] = {"gen_length": 16, "block_length": 8, "num_rows": 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "dtype"),
    # In bfloat16 a token may differ where two logits nearly tie, as one of SDAR's does here.
    [(family, torch.float32) for family in ("llada", "dream", "sdar", "llada2_moe")]
    + [(family, torch.bfloat16) for family in ("llada", "dream", "llada2_moe")],
    ids=str,
)
def test_tokens_are_those_of_the_eager_path(family: str, dtype: torch.dtype) -> None:
    """Rows come and go, so that forwards have one group of rows and several, of many sizes."""
    model = load_tiny(family, dtype=dtype, **LAW_OPTIONS.get(family, {}))
    if "moe" in family and dtype == torch.float32:
        with pytest.raises(ValueError, match="must be in bfloat16"):
            model.compiled = True
        return
    answers: list[list[torch.Tensor]] = []
    for compiled in (False, True):
        model.compiled = compiled
        counters.clear()
        for cache in (NoCache(), DualCache(), FreeCache()):
            for sampler in (ConfidenceThreshold(0.6), Klass(0.5, 0.05)):
                outs = decode_many(model, PROMPTS, sampler, cache=cache, **OPTIONS)
                answers.append([out.tokens for out in outs])
    half = len(answers) // 2
    for eager, fast in zip(answers[:half], answers[half:], strict=True):
        assert all(torch.equal(wanted, got) for wanted, got in zip(eager, fast, strict=True))
    assert not counters["graph_break"]
    assert 2 <= counters["stats"]["unique_graphs"] <= 16


def test_a_decode_of_changing_shapes_is_compiled_a_few_times() -> None:
    model = load_tiny("llada", dtype=torch.float32)
    eager = [out.tokens for out in decode_many(model, PROMPTS, ConfidenceThreshold(0.6), **OPTIONS)]
    model.compiled = True
    counters.clear()
    calls = 0

    def count(event: object) -> None:
        nonlocal calls
        calls += 1

    outs = decode_many(model, PROMPTS, ConfidenceThreshold(0.6), observers=[count], **OPTIONS)
    assert all(torch.equal(tokens, out.tokens) for tokens, out in zip(eager, outs, strict=True))
    assert calls > 10
    # Forwards of one row and of several, with and without a mask; statistics of one and of several.
    assert 2 <= counters["stats"]["unique_graphs"] <= 6
    assert not counters["graph_break"]


@pytest.mark.parametrize(
    ("rows", "is_gathered"),
    [
        pytest.param(slice(0, 2), False, id="slice"),
        pytest.param(None, False, id="all", marks=pytest.mark.slow),
        pytest.param(torch.tensor([0, 2]), True, id="tensor", marks=pytest.mark.slow),
    ],
)
def test_keys_and_values_are_written_in_place(rows: Any, is_gathered: bool) -> None:
    """Once Inductor copied the cache of all layers in every layer: 2.4 times a step on a GPU."""
    model = load_tiny("llada", dtype=torch.float32)
    cache = model.new_kv_cache(3, 40)
    columns = torch.arange(8, 14).repeat(3 if rows is None else 2, 1)
    inputs = ForwardInputs(columns, columns, columns - 8, None, cache, slice(8, 14), rows)
    frequencies = model.transformer.config.rope.frequencies(model.device)
    twin = copy.deepcopy(inputs)
    expected = model._forward(twin)
    with torch.inference_mode():
        # With fixed sizes, the generated code contains them as numbers.
        compiled = torch.compile(_logits, fullgraph=True, dynamic=False)
        logits, code = run_and_get_code(
            compiled, model.transformer, plain_inputs(inputs), frequencies
        )
    torch.testing.assert_close(logits, expected, **NEAR)
    torch.testing.assert_close(inputs.kv_cache.keys, twin.kv_cache.keys, **NEAR)
    made = re.findall(r"empty_strided_cpu\(\(([^)]*)\)", "".join(code))
    axes = [[axis for axis in size.split(", ") if axis] for size in made]
    assert axes
    # Buffers of all slots, of all layers or of one, have an axis of 40; a gather of rows has one.
    is_whole = ["40" in size or len(size) == 5 for size in axes]
    assert sum(is_whole) <= (2 * model.transformer.config.num_layers if is_gathered else 0)


@pytest.mark.slow
def test_logits_are_the_callers_to_change() -> None:
    model = load_tiny("llada", dtype=torch.float32)
    model.compiled = True
    columns = torch.arange(6)[None]
    inputs = ForwardInputs(columns, columns, columns)
    logits = model.predict(inputs)
    logits.add_(1.0)
    torch.testing.assert_close(model.predict(inputs) + 1.0, logits, **NEAR)
    model.compiled = False
    torch.testing.assert_close(model.predict(inputs) + 1.0, logits, **NEAR)
