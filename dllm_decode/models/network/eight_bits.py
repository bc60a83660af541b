"""Products of 8-bit weights with 8-bit activations.

`Int8Linear` is what oneDNN computes on a CPU with VNNI, `Fp8Linear` what CUDA's tensor cores
compute from compute capability 8.9 on, and slowly any CPU.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

# The most steps of an activation. Its scale is rounded to the dtype, which in bfloat16 adds up to
# half a step; 128 + 126.5 still rounds to a number of 8 bits.
_STEPS = 126
_ROWS_AT_ONCE = 4096
_FLOAT8 = torch.float8_e4m3fn
# Tensor cores multiply matrices of float8 whose sizes are multiples of this.
_FLOAT8_ALIGNMENT = 16


def can_multiply_int8() -> bool:
    """Returns whether this machine is a CPU with AVX-512 VNNI.

    On other processors oneDNN's products of 8 bits are slow, or overflow in 16 bits.
    """
    # A private function of torch, of which no other one says the same.
    has_vnni = getattr(torch.cpu, "_is_vnni_supported", lambda: False)
    return torch.backends.mkldnn.is_available() and bool(has_vnni())


class EightBitLinear(nn.Module, ABC):
    """A linear map with weights and activations in 8 bits, for forwards without gradients.

    A weight has a scale for each output, and an activation a scale for each column, so that a
    column's rounding to 8 bits depends on no other column.
    """

    bias: Tensor | None

    @abstractmethod
    def __init__(self, weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None) -> None:
        """Rounds the weight; the bias keeps its dtype."""
        super().__init__()
        self.register_buffer("bias", bias)

    @abstractmethod
    def multiply(self, columns: Float[Tensor, "C I"]) -> Float[Tensor, "C O"]:
        """Rounds each column to 8 bits, and returns the products, in float32 or the same dtype."""

    def forward(self, input: Float[Tensor, "... I"]) -> Float[Tensor, "... O"]:
        """Returns the products with the bias, in the dtype of the input."""
        if input.requires_grad:
            raise ValueError(
                "A model with weights in 8 bits has no gradients, got an input that needs them. "
                "Load it without quantize to train it."
            )
        product = self.multiply(input.flatten(0, -2))
        if self.bias is not None:
            product += self.bias
        return product.to(input.dtype).view(*input.shape[:-1], -1)


class Int8Linear(EightBitLinear):
    """Multiplies whole numbers, by oneDNN; a column's result depends on no other column."""

    packed: Tensor
    scale: Tensor
    zero: Tensor

    def __init__(self, weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None) -> None:
        super().__init__(weight, bias)
        scale = _nonzero(weight.abs().amax(1).float() / 127)
        parts = zip(weight.split(_ROWS_AT_ONCE), scale.split(_ROWS_AT_ONCE), strict=True)
        rows = [(part / steps[:, None]).round().to(torch.int8) for part, steps in parts]
        self.register_buffer("packed", _pack(torch.cat(rows)))
        self.register_buffer("scale", scale)
        self.register_buffer("zero", torch.zeros_like(scale, dtype=torch.int64))

    def multiply(self, columns: Float[Tensor, "C I"]) -> Float[Tensor, "C O"]:
        dtype = torch.bfloat16 if columns.dtype == torch.bfloat16 else torch.float32
        steps, scale = _in_steps(columns, dtype)
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            steps, 1.0, 128, self.packed, self.scale, self.zero,
            None, 1.0, 0, dtype, "none", [], "",
        )  # fmt: skip
        return product.mul_(scale)

    def __getstate__(self) -> dict[str, Any]:
        # Packed numbers can be neither copied nor pickled.
        state = self.__dict__.copy()
        state["_buffers"] = {**self._buffers, "packed": self.packed.to_dense().T.contiguous()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.packed = _pack(self.packed)


class Fp8Linear(EightBitLinear):
    """Multiplies numbers in float8 (e4m3), and adds them up in float32.

    As in bfloat16, the rounding of a sum may depend on the number of columns.

    Raises:
        ValueError: If a size of the weight is no multiple of 16.
    """

    rounded: Tensor
    scale: Tensor

    def __init__(self, weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None) -> None:
        super().__init__(weight, bias)
        if any(size % _FLOAT8_ALIGNMENT for size in weight.shape):
            raise ValueError(
                f"Sizes of matrices in float8 must be multiples of {_FLOAT8_ALIGNMENT}, got "
                f"{tuple(weight.shape)}. Leave quantize out."
            )
        rounded, scale = _in_float8(weight)
        self.register_buffer("rounded", rounded)
        self.register_buffer("scale", scale.T.contiguous())

    def multiply(self, columns: Float[Tensor, "C I"]) -> Float[Tensor, "C O"]:
        rounded, scale = _in_float8(columns)
        # With a scale for each row, CUDA rounds its sums to bfloat16 only.
        product = torch._scaled_mm(
            rounded, self.rounded.T, scale, self.scale, out_dtype=torch.bfloat16
        )
        return product.to(columns.dtype)


def _in_float8(vectors: Float[Tensor, "N I"]) -> tuple[Tensor, Float[Tensor, "N 1"]]:
    """Returns each vector in float8, and the scale by which it is to be multiplied."""
    # One kernel on CUDA, where `abs` and `amax` are two.
    largest = torch.linalg.vector_norm(vectors, torch.inf, dim=1, keepdim=True).float()
    scale = _nonzero(largest / torch.finfo(_FLOAT8).max)
    return (vectors / scale).to(_FLOAT8), scale


def _in_steps(
    columns: Float[Tensor, "C I"], dtype: torch.dtype
) -> tuple[UInt8[Tensor, "C I"], Float[Tensor, "C 1"]]:
    """Returns each number as 128 plus its steps, and the size of a step in each column."""
    wide = columns.float()
    scale = _nonzero(wide.abs().amax(1, keepdim=True) / _STEPS).to(dtype)
    # To int8 with the sign bit flipped takes a seventh of the time of torch's cast to uint8.
    steps = (wide / scale.float()).round_().to(torch.int8).view(torch.uint8)
    return steps.bitwise_xor_(128), scale


def _nonzero(scale: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Returns scales by which zeros can be divided."""
    return scale.clamp_min_(torch.finfo(torch.float32).tiny)


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.onednn.qlinear_prepack(weight, None)
    return packed
