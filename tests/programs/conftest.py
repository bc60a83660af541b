"""What the checks of kernels share. Each module is run in a process of its own, not alone."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.fixture(autouse=True)
def _half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter cuts bfloat16 off and multiplies its bits; hardware rounds and multiplies."""
    if not INTERPRETED:
        return
    from triton import language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    cast, dot = InterpreterBuilder.cast_impl, InterpreterBuilder.create_dot

    def rounded(self: Any, source: Any, kind: Any) -> Any:
        if (source.dtype.scalar, kind.scalar) != (tl.float32, tl.bfloat16):
            return cast(self, source, kind)
        bits = torch.tensor(source.data).bfloat16().view(torch.int16).numpy().view("uint16")
        return TensorHandle(bits, tl.bfloat16)

    def widened(factor: Any) -> Any:
        if factor.dtype.scalar != tl.bfloat16:
            return factor
        bits = torch.tensor(factor.data.view("int16"))
        return TensorHandle(bits.view(torch.bfloat16).float().numpy(), tl.float32)

    def product(self: Any, left: Any, right: Any, *rest: Any) -> Any:
        return dot(self, widened(left), widened(right), *rest)

    monkeypatch.setattr(InterpreterBuilder, "cast_impl", rounded)
    monkeypatch.setattr(InterpreterBuilder, "create_dot", product)


@pytest.fixture
def random() -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(0)
    device = "cpu" if INTERPRETED else "cuda:0"

    def normal(*size: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(size, generator=generator)).to(device, dtype)

    return normal
