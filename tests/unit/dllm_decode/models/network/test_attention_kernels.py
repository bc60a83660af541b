"""Attention over split keys: found right, and compiled."""

from pathlib import Path

import pytest
import torch
from processes import compile_for, needs_triton, run_checks

from dllm_decode.models.network.operations import Heads


@needs_triton
def test_the_interpreted_kernels_agree_with_torch() -> None:
    assert "passed" in run_checks("attention_kernel_checks", interpret=True)


@needs_triton
@pytest.mark.slow
def test_the_interpreted_kernels_agree_with_torch_at_every_size() -> None:
    assert "passed" in run_checks("attention_kernel_checks", interpret=True, marked="slow")


@needs_triton
@pytest.mark.gpu
@pytest.mark.parametrize("marked", ["not slow", "slow"])
def test_the_compiled_kernels_agree_with_torch(marked: str) -> None:
    assert "passed" in run_checks("attention_kernel_checks", interpret=False, marked=marked)


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
def test_the_kernels_compile_for_gpus_that_are_not_here(
    capability: int, dtype: str, mask: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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
