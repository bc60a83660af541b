"""The fused kernel and who uses it: interpreted, compiled for GPUs that need not be there, run."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from samplers import summary
from samplers.summary import Summary

ROOT = Path(__file__).parents[2]

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs Triton, which is for Linux only"
)


def run_checks(interpret: str) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "tests/fused_kernel_checks.py",
        ],
        cwd=ROOT,
        env=kept | {"TRITON_INTERPRET": interpret, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    # Pytest's 5, for no tests at all, is a failure too.
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_triton
def test_the_interpreted_kernel_agrees_with_float64() -> None:
    assert "passed" in run_checks("1")


@needs_triton
@pytest.mark.gpu
def test_the_compiled_kernel_agrees_with_float64() -> None:
    assert "skipped" not in run_checks("0")


@needs_triton
@pytest.mark.parametrize("capability", [80, 90, 100])
def test_the_kernel_compiles_for_gpus_that_are_not_here(
    capability: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A bug: the interpreter ran a kernel that the compiler refused."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from samplers import fused

    signature = dict.fromkeys(fused._summarise.arg_names, "i32")
    signature |= {"logits": "*bf16", "row_stride": "i64", "token_stride": "constexpr"}
    signature |= dict.fromkeys(("top_logits", "normalisers", "entropies"), "*fp32")
    signature |= {"top_tokens": "*i64", "num_lanes": "constexpr"}
    constants = {"token_stride": 1, "num_lanes": fused._NUM_LANES}
    source = ASTSource(fused._summarise, signature, constants)
    options = {"num_warps": fused._NUM_WARPS}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert compiled.asm["cubin"]


def test_without_cuda_the_kernel_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    summary._kernel.cache_clear()
    monkeypatch.delitem(sys.modules, "samplers.fused", raising=False)
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        assert Summary(torch.zeros(1, 2, 9, dtype=dtype)).entropy.isfinite().all()
    assert "samplers.fused" not in sys.modules


def test_without_triton_cuda_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    # As in a process that has not imported the kernel yet.
    monkeypatch.delitem(sys.modules, "samplers.fused", raising=False)
    monkeypatch.delattr("samplers.fused", raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)
    summary._kernel.cache_clear()
    assert summary._kernel(torch.device("cuda"), torch.bfloat16) is None
    summary._kernel.cache_clear()
