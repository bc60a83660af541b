"""What a layer computes between its matrices, as fused kernels: found right, few, and chosen."""

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from pretended import Operations
from processes import GPUS_THAT_ARE_NOT_HERE, compile_for, needs_triton, run_checks
from tiny_models import EVERY_FAMILY, shape_of

from dllm_decode.core.model import ForwardInputs, KVCache
from dllm_decode.models.network import context as plan
from dllm_decode.models.network import fused as choice
from dllm_decode.models.network import operations_torch as plain
from dllm_decode.models.network.operations import Heads
from dllm_decode.models.network.transformer import Transformer

SHAPES = {key: shape_of(key) for key in EVERY_FAMILY}
# Experts have operations of their own.
FAMILY = pytest.mark.parametrize("family", [key for key in SHAPES if SHAPES[key].moe is None])


@needs_triton
@pytest.mark.parametrize("interpret", [True, pytest.param(False, marks=pytest.mark.gpu)])
@pytest.mark.parametrize("marked", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_the_kernels_agree_with_torch(interpret: bool, marked: str) -> None:
    checks = ("fused_layer_checks", "attention_kernel_checks")
    said = run_checks(*checks, interpret=interpret, marked=marked)
    assert "passed" in said
    # One check of attention, with eight cases, counts the processors of an H100.
    assert interpret or "skipped" not in said or "8 skipped" in said


@needs_triton
@GPUS_THAT_ARE_NOT_HERE
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_the_kernels_compile_for_gpus_that_are_not_here(
    capability: int, dtype: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from dllm_decode.models.network import kernels
    from dllm_decode.models.network import operations_triton as fused

    def compiles(kernel: Any, types: dict[str, str], constants: dict[str, Any], warps: int) -> None:
        typed = dict.fromkeys(kernel.arg_names[:2], f"*{dtype}") | types
        made = compile_for(capability, kernel, typed, constants, num_warps=warps, **fused._OPTIONS)
        assert made.asm["cubin"]
        # It would skip a rounding.
        assert "fma.rn.f32" not in made.asm["ptx"]

    others = dict.fromkeys(("summed", "normed", "weight"), f"*{dtype}")
    compiles(kernels.add_norm, others | {"eps": "fp32"}, {"in_float32": True, "block": 4096}, 8)
    compiles(kernels.swiglu, {}, {"block": 1024}, 4)
    kinds = {f"{kind}_eps": "fp32" for kind in ("query", "key")}
    kinds |= dict.fromkeys(("sin", "query", "keys", "values"), f"*{dtype}")
    sizes = {"num_heads": 28, "num_kv_heads": 4, "head_dim": 96, "block": 64, "tile": 4}
    sizes |= {"keys_stride": 1, "values_stride": 1}
    sizes |= {"query_in_float32": True, "key_in_float32": True}
    indexed = dict.fromkeys(("rows", "slots"), "*i64")
    weighted = dict.fromkeys(("query_weight", "key_weight"), f"*{dtype}")
    for more, fewer in ((indexed, weighted), (weighted, indexed)):
        compiles(kernels.rotate_and_store, kinds | more, sizes | dict.fromkeys(fewer), 1)


@needs_triton
@pytest.mark.parametrize(
    ("capability", "dtype", "mask"),
    [
        (90, "bf16", "shared"),
        *(
            pytest.param(capability, dtype, mask, marks=pytest.mark.slow)
            for capability in (80, 90, 100)
            for dtype, mask in (("bf16", "none"), ("fp16", "each"), ("fp32", "shared"))
        ),
    ],
)
def test_the_kernels_of_attention_compile_for_gpus_that_are_not_here(
    capability: int, dtype: str, mask: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from dllm_decode.models.network import attention_kernels as kernels
    from dllm_decode.models.network import operations_triton as fused

    size = torch.float32 if dtype == "fp32" else torch.float16
    part = torch.empty(1, 32, 32, 128, dtype=size)
    tiling = fused._tiling(Heads(part, part, part))
    sums = dict.fromkeys(("mixed", "sums", "peaks"), "*fp32")
    types = sums | dict.fromkeys(("query", "key", "value"), f"*{dtype}") | {"scale": "fp32"}
    constants: dict[str, object] = {"head_dim": 128, "bias_is_shared": mask != "each"}
    constants |= {"block": tiling.lanes, "tile": tiling.queries, "step": tiling.keys}
    if mask == "none":
        constants["bias"] = None
    else:
        types["bias"] = f"*{dtype}"
    strides = [name for name in kernels.attend_share.arg_names if name.endswith("_stride")]
    made = compile_for(
        capability, kernels.attend_share, types, constants, num_warps=4,
        aligned=[name for name in [*types, *strides] if "bias" not in name and name != "scale"],
        **fused._OPTIONS,
    )  # fmt: skip
    assert made.asm["cubin"]
    # Keys and values are on their way while others are multiplied.
    assert "cp.async" in made.asm["ptx"]
    constants = {"head_dim": 128, "block": 128, "most_shares": fused._MOST_SHARES}
    types = sums | {"out": f"*{dtype}"}
    assert compile_for(capability, kernels.add_shares, types, constants, num_warps=4).asm["cubin"]


# Neither computes nor moves anything.
FREE = {"_unsafe_view", "empty", "empty_like", "new_empty"}


def kernels_of(work: Callable[..., object], *arguments: Any) -> Counter[str]:
    """Counts what would each be a kernel on CUDA."""
    seen = Counter[str]()

    def count(func: Any, *_: Any) -> None:
        name = func.__name__.split(".")[0]
        aliases = [one.alias_info for one in func._schema.returns]
        is_view = any(alias is not None and not alias.is_write for alias in aliases)
        seen.update([name] if not is_view and name not in FREE else [])

    # In inference mode compound operations would hide their parts.
    with torch.no_grad(), Operations(count):
        work(*arguments)
    return seen


def of_a_layer(family: str, monkeypatch: pytest.MonkeyPatch, version: Any) -> Counter[str]:
    """Counts what a layer more costs, of a forward of a block with a memory and a mask."""
    monkeypatch.setattr(plan, "operations_for", lambda device, dtype, fused: version)
    columns = torch.tensor([[1, 2, 3], [4, 5, 6]])
    attend, wanted = torch.ones(2, 3, 10, dtype=torch.bool), torch.arange(3).expand(2, -1)
    counts = []
    for num_layers in (2, 3):
        shape = replace(SHAPES[family], num_layers=num_layers)
        model = Transformer(shape).to(torch.bfloat16)
        size = (num_layers, 2, shape.num_kv_heads, 10, shape.head_dim)
        kv_cache = KVCache(torch.zeros(size).bfloat16(), torch.zeros(size).bfloat16())
        # Frequencies are made once for all forwards, which is not counted.
        shape.rope.rotation(columns, torch.bfloat16)
        inputs = ForwardInputs(columns, columns, wanted, attend, kv_cache, columns)
        counts.append(kernels_of(model.forward_groups, [inputs]))
    return counts[1] - counts[0]


@needs_triton
@FAMILY
def test_a_layer_is_four_matrices_and_few_kernels(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dllm_decode.models.network import operations_triton as fused

    monkeypatch.setattr(
        fused, "_launch", lambda kernel, *_, num_warps: launched.append(kernel.__name__)
    )
    launched: list[str] = []
    count = of_a_layer(family, monkeypatch, fused)
    names = ["add_norm", "rotate_and_store", "add_norm", "swiglu"]
    assert launched == [*(5 * names)[:8], "add_norm", *(3 * names), "add_norm"]
    attention = {name for name in count if "attention" in name}
    matrices = {name for name in count if name in ("mm", "addmm", "linear")}
    assert sum(count[name] for name in attention) == 1
    assert sum(count[name] for name in matrices) == 4
    # Where query heads share a key head, attention's results are copied to where these join.
    # One more product where far positions scale queries.
    shape, positions = SHAPES[family], torch.zeros(1, 1, dtype=torch.long)
    is_scaled = shape.rope.query_scale(positions, torch.float32) is not None
    assert count.total() == 5 + (shape.num_heads > shape.num_kv_heads) + is_scaled


@FAMILY
def test_torch_makes_indices_once_a_forward(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    count = of_a_layer(family, monkeypatch, plain)
    assert count["index_put_"] == 2
    assert not {"arange", "repeat", "neg", "constant_pad_nd", "zeros", "fill_"} & set(count)


@pytest.mark.parametrize("num_queries", [1, 3])
def test_a_mask_lies_as_attention_on_cuda_reads_it(num_queries: int) -> None:
    """A bug: where the keys were no multiple of eight, every layer copied the mask."""
    attend = torch.rand(2, num_queries, 10, generator=torch.Generator().manual_seed(0)) > 0.5
    bias = plan._as_bias(attend, torch.bfloat16, 3)
    assert [stride % 8 for stride in bias.stride()[:-1]] == [0, 0, 0]
    seen = attend.repeat(1, 3 if num_queries > 1 else 1, 1)
    assert torch.equal(bias[:, 0] == 0, seen)
    wanted = torch.tensor([[2, 0], [1, 1]])
    shared = plan.LayerContext(plain, plan.Rotation(*torch.zeros(2, 2, 1, 3, 4)), bias, None)
    kept = plan.for_queries(shared, wanted).bias
    if num_queries == 1:
        assert kept is bias
    else:
        picked = attend.gather(1, wanted[..., None].expand(-1, -1, 10)).repeat(1, 3, 1)
        assert torch.equal(kept[:, 0] == 0, picked)


@pytest.fixture
def _untried(monkeypatch: pytest.MonkeyPatch) -> Any:
    choice._checked.cache_clear()
    monkeypatch.delitem(sys.modules, "dllm_decode.models.network.operations_triton", raising=False)
    monkeypatch.delattr("dllm_decode.models.network.operations_triton", raising=False)
    yield
    choice._checked.cache_clear()


@pytest.mark.usefixtures("_untried")
def test_without_cuda_the_kernels_are_not_imported() -> None:
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        with torch.inference_mode():
            assert plan.operations_for(torch.device("cpu"), dtype) is plain
    assert "dllm_decode.models.network.operations_triton" not in sys.modules


@pytest.mark.usefixtures("_untried")
def test_without_triton_cuda_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with torch.inference_mode():
        operations = plan.operations_for(torch.device("cuda"), torch.bfloat16)
    with pytest.warns(UserWarning, match="Triton cannot be imported"):
        operations.swiglu(torch.ones(1, 2, 4))


def test_gradients_and_mixed_dtypes_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    choice._checked.cache_clear()
    cuda = torch.device("cuda")
    assert plan.operations_for(cuda, torch.bfloat16) is plain
    with torch.no_grad():
        assert not plan.operations_for(cuda, torch.bfloat16).failed
        monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: kind == "cuda")
        assert plan.operations_for(cuda, torch.float32) is plain
