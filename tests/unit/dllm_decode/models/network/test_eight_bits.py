"""Products of 8 bits: what is rounded, and that a column's result depends on no other one."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from dllm_decode.models.network.eight_bits import (
    EightBitLinear,
    Fp8Linear,
    Int8Linear,
    can_multiply_int8,
)

needs_vnni = pytest.mark.skipif(not can_multiply_int8(), reason="needs AVX-512 VNNI")
KIND = pytest.mark.parametrize(
    "kind", [pytest.param(Int8Linear, marks=needs_vnni), Fp8Linear], ids=["int8", "fp8"]
)
DTYPE = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)


def plain(dtype: torch.dtype = torch.float32, *, bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(96, 48, bias=bias, dtype=dtype).requires_grad_(False)


def eight(linear: nn.Linear, kind: type[EightBitLinear] = Int8Linear) -> EightBitLinear:
    return kind(linear.weight, linear.bias)


def columns(dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn(3, 7, 96, generator=generator)
    # Columns of very different sizes have a scale each.
    return (drawn * torch.logspace(-2, 2, 7)[:, None]).to(dtype)


def rounded(values: Tensor, steps: int, dtype: torch.dtype) -> Tensor:
    """Rounds to multiples of each vector's scale; its largest value is `steps` times the scale."""
    scale = (values.float().abs().amax(-1, keepdim=True) / steps).to(dtype).double()
    return (values.double() / scale).round() * scale


@needs_vnni
@DTYPE
def test_weights_and_columns_are_rounded_to_steps_of_their_own(dtype: torch.dtype) -> None:
    linear, inputs = plain(dtype), columns(dtype)
    scaled_in = torch.bfloat16 if dtype == torch.bfloat16 else torch.float32
    weight = rounded(linear.weight, 127, torch.float32)
    expected = rounded(inputs, 126, scaled_in) @ weight.T + linear.bias.double()
    outputs = eight(linear)(inputs)
    assert outputs.dtype == dtype
    size = expected.abs().amax(-1, keepdim=True)
    error = ((outputs.double() - expected).abs() / size).max()
    # There are a few roundings to the dtype, not hundreds.
    assert error < 4 * torch.finfo(dtype).eps + 1e-6


def assert_same(got: Tensor, expected: Tensor, kind: type[EightBitLinear]) -> None:
    """Whole numbers add up exactly; sums of float8 are rounded to bfloat16, in any order."""
    tolerance = 0.0 if kind is Int8Linear else 0.01
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance / 100)


def in_float8(values: Tensor) -> Tensor:
    """Rounds to three bits after the point; the largest value of a vector is 448 of its scale."""
    scale = values.double().abs().amax(-1, keepdim=True) / 448
    scaled = values.double() / scale
    # Below 2 ** -6, the step of the format stays the same.
    step = 2.0 ** (scaled.abs().clamp(min=2.0**-6).log2().floor() - 3)
    return (scaled / step).round() * step * scale


@DTYPE
def test_weights_and_columns_are_rounded_to_float8(dtype: torch.dtype) -> None:
    linear, inputs = plain(dtype), columns(dtype)
    expected = in_float8(inputs) @ in_float8(linear.weight).T + linear.bias.double()
    outputs = eight(linear, Fp8Linear)(inputs)
    assert outputs.dtype == dtype
    exact = inputs.double() @ linear.weight.double().T + linear.bias.double()
    size = expected.abs().amax(-1, keepdim=True)
    error = ((outputs.double() - expected).abs() / size).max()
    # A division by the scale in float32 may round a few numbers to the other side.
    assert error < 0.01 < ((outputs.double() - exact).abs() / size).max() < 0.1


@needs_vnni
@DTYPE
def test_a_column_is_the_same_alone_and_among_others(dtype: torch.dtype) -> None:
    layer, inputs = eight(plain(dtype)), columns(dtype)
    together = layer(inputs)
    for row in range(3):
        assert torch.equal(layer(inputs[row]), together[row])
        assert torch.equal(layer(inputs[row : row + 1, 4:5])[0, 0], together[row, 4])


@KIND
def test_numbers_that_are_no_numbers_stay_so_in_their_column_alone(
    kind: type[EightBitLinear],
) -> None:
    layer, inputs = eight(plain(), kind), columns()
    clean = layer(inputs)
    inputs[0, 0, 5], inputs[1, 2, 6] = torch.nan, torch.inf
    inputs[2, 1] = 0.0
    outputs = layer(inputs)
    assert not outputs[0, 0].isfinite().any()
    assert not outputs[1, 2].isfinite().any()
    assert torch.equal(outputs[2, 1], plain().bias)
    assert_same(outputs[0, 1:], clean[0, 1:], kind)


@needs_vnni
def test_packed_numbers_are_copied_and_pickled() -> None:
    layer, inputs = eight(plain(bias=False)), columns()
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(copied(inputs), layer(inputs))


@KIND
def test_gradients_are_refused(kind: type[EightBitLinear]) -> None:
    with pytest.raises(ValueError, match="weights in 8 bits has no gradients"):
        eight(plain(), kind)(columns().requires_grad_())


def test_matrices_that_tensor_cores_cannot_multiply_are_refused() -> None:
    with pytest.raises(ValueError, match=r"must be multiples of 16, got \(40, 96\)"):
        Fp8Linear(torch.ones(40, 96), None)


@pytest.mark.gpu
def test_tensor_cores_multiply_as_a_cpu() -> None:
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("needs tensor cores that multiply in float8")
    layer, inputs = eight(plain(torch.bfloat16), Fp8Linear), columns(torch.bfloat16)
    expected = layer(inputs)
    assert_same(layer.to("cuda")(inputs.to("cuda")).cpu(), expected, Fp8Linear)
