"""The fused kernel and who uses it: interpreted, compiled for GPUs that need not be there, run."""

import sys
from pathlib import Path

import pytest
import torch
from processes import GPUS_THAT_ARE_NOT_HERE, compile_for, needs_triton, run_checks

from samplers.logits import summary
from samplers.logits.summary import Summary


@needs_triton
@pytest.mark.parametrize("marked", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_the_interpreted_kernel_agrees_with_float64(marked: str) -> None:
    assert "passed" in run_checks("fused_kernel_checks", interpret=True, marked=marked)


@needs_triton
@pytest.mark.gpu
def test_the_compiled_kernel_agrees_with_float64() -> None:
    assert "skipped" not in run_checks("fused_kernel_checks", interpret=False, marked="")


@needs_triton
@GPUS_THAT_ARE_NOT_HERE
def test_the_kernel_compiles_for_gpus_that_are_not_here(
    capability: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A bug: the interpreter ran a kernel that the compiler refused."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from samplers.logits import kernel as fused

    types = {"logits": "*bf16", "row_stride": "i64", "top_tokens": "*i64"}
    types |= dict.fromkeys(("top_logits", "odds_against", "entropies"), "*fp32")
    constants = {"token_stride": 1, "num_lanes": fused._NUM_LANES}
    compiled = compile_for(
        capability, fused._summarise, types, constants, num_warps=fused._NUM_WARPS
    )
    assert compiled.asm["cubin"]


def test_without_cuda_the_kernel_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    summary._kernel.cache_clear()
    monkeypatch.delitem(sys.modules, "samplers.logits.kernel", raising=False)
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        assert Summary(torch.zeros(1, 2, 9, dtype=dtype)).entropy.isfinite().all()
    assert "samplers.logits.kernel" not in sys.modules


def test_without_triton_cuda_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    # As in a process that has not imported the kernel yet.
    monkeypatch.delitem(sys.modules, "samplers.logits.kernel", raising=False)
    monkeypatch.delattr("samplers.logits.kernel", raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)
    summary._kernel.cache_clear()
    assert summary._kernel(torch.device("cuda"), torch.bfloat16) is None
    summary._kernel.cache_clear()
