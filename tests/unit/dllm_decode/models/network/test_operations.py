"""Rotation and SwiGLU that are compiled alone have the bits of the eager operations."""

import pytest
import torch

from dllm_decode.models.network.operations import EAGER, Rotation, compiled_pointwise

# The warnings are Inductor's own.
pytestmark = [
    pytest.mark.slow, pytest.mark.untyped, pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_compiled_swiglu_has_the_bits_of_the_eager_one(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    for columns in (32, 33):
        gate_up = (4 * torch.randn(2, columns, 192, generator=generator)).to(dtype)
        assert torch.equal(compiled_pointwise().swiglu(gate_up), EAGER.swiglu(gate_up))


@pytest.mark.parametrize("table_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
# All components of a head turn, or the first half of them.
@pytest.mark.parametrize("dim", [32, 16])
def test_compiled_rotation_has_the_bits_of_the_eager_one(
    dtype: torch.dtype, table_dtype: torch.dtype, dim: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    heads = torch.randn(2, 3, 33, 32, generator=generator).to(dtype)
    angles = 50 * torch.randn(2, 1, 33, dim // 2, generator=generator)
    cos, sin = angles.cos(), angles.sin()
    rotation = Rotation(
        torch.cat((cos, cos), -1).to(table_dtype), torch.cat((-sin, sin), -1).to(table_dtype)
    )
    expected = EAGER.rotate(heads, rotation)
    assert torch.equal(compiled_pointwise().rotate(heads, rotation), expected)
