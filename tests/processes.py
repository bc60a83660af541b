"""Processes of their own: two as torchrun starts them, and one that interprets Triton's kernels."""

import importlib.util
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def in_two_processes(*words: str, timeout_s: float = 120.0) -> list[tuple[int, str]]:
    """Returns exit codes and standard errors; "{rank}" among the words is the process' number."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = [
        ROOT,
        ROOT / "tests",
        ROOT / "tests" / "unit" / "dllm_decode" / "training",
        os.environ.get("PYTHONPATH", ""),
    ]
    children = []
    for rank in range(2):
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1",
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true",
        }  # fmt: skip
        children.append(subprocess.Popen(
            [sys.executable, *(word.replace("{rank}", str(rank)) for word in words)],
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        ))  # fmt: skip
    try:
        said = [child.communicate(timeout=timeout_s)[1] for child in children]
    finally:
        for child in children:
            child.kill()
    return [(child.returncode, text) for child, text in zip(children, said, strict=True)]


def ray_environment() -> dict[str, str]:
    """Returns the environment of a process that starts a Ray of its own."""
    return {
        **os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Otherwise Ray writes a token of its own to the home folder.
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }  # fmt: skip


needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs Triton, which is for Linux only"
)
GPUS_THAT_ARE_NOT_HERE = pytest.mark.parametrize(
    "capability", [90, *(pytest.param(number, marks=pytest.mark.slow) for number in (80, 100))]
)


def run_checks(*modules: str, interpret: bool, marked: str = "not slow") -> str:
    """Runs modules of tests in a process of their own, on the CPU or on CUDA.

    Triton decides when it is imported whether kernels are compiled, or interpreted on the CPU.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marked,
         *(f"tests/programs/{module}.py" for module in modules)],
        env=kept | {"TRITON_INTERPRET": str(int(interpret)), "OMP_NUM_THREADS": "1"},
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    # Pytest's 5, for no tests at all, is a failure too.
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def compile_for(
    capability: int,
    kernel: Any,
    types: dict[str, str],
    constants: dict[str, object],
    *,
    num_warps: int,
    aligned: Sequence[str] = (),
    **options: object,
) -> Any:
    """Compiles a kernel for a GPU that need not be there.

    Args:
        capability: Of the GPU, such as 90.
        types: Of the kernel's arguments; what has none is a 32-bit integer.
        constants: Arguments that it is compiled for.
        aligned: Arguments that sixteen divides, as launches find out.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = (
        dict.fromkeys(kernel.arg_names, "i32") | types | dict.fromkeys(constants, "constexpr")
    )
    assert set(signature) == set(kernel.arg_names)
    divided = [["tt.divisibility", 16]]
    hints = {(kernel.arg_names.index(name),): divided for name in aligned}
    source = ASTSource(kernel, signature, constants, hints)
    target = GPUTarget("cuda", capability, 32)
    return triton.compile(source, target=target, options={"num_warps": num_warps, **options})
