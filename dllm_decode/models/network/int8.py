"""Products of 8-bit weights with 8-bit activations, as oneDNN computes them on a CPU with VNNI."""

from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

# The most steps of an activation. Its scale is rounded to the dtype, which in bfloat16 adds up to
# half a step; 128 + 126.5 still rounds to a number of 8 bits.
_STEPS = 126
_ROWS_AT_ONCE = 4096


def can_multiply_int8() -> bool:
    """Returns whether this machine is a CPU with AVX-512 VNNI.

    On other processors oneDNN's products of 8 bits are slow, or overflow in 16 bits.
    """
    # A private function of torch, of which no other one says the same.
    has_vnni = getattr(torch.cpu, "_is_vnni_supported", lambda: False)
    return torch.backends.mkldnn.is_available() and bool(has_vnni())


class Int8Linear(nn.Module):
    """A linear map with weights and activations in 8 bits, for forwards without gradients.

    A weight has a scale for each output, an activation a scale for each column, so that a column's
    result depends on no other column.
    """

    packed: Tensor
    scale: Tensor
    zero: Tensor
    bias: Tensor | None

    def __init__(self, weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None) -> None:
        super().__init__()
        scale = _nonzero(weight.abs().amax(1).float() / 127)
        parts = zip(weight.split(_ROWS_AT_ONCE), scale.split(_ROWS_AT_ONCE), strict=True)
        rows = [(part / steps[:, None]).round().to(torch.int8) for part, steps in parts]
        self.register_buffer("packed", _pack(torch.cat(rows)))
        self.register_buffer("scale", scale)
        self.register_buffer("zero", torch.zeros_like(scale, dtype=torch.int64))
        self.register_buffer("bias", bias)

    def forward(self, input: Float[Tensor, "... I"]) -> Float[Tensor, "... O"]:
        """Rounds each column of the input to 8 bits, and multiplies."""
        if input.requires_grad:
            raise ValueError(
                "A model with quantize='int8' on a CPU has no gradients, got an input that needs "
                "them. Load it without quantize to train it."
            )
        dtype = torch.bfloat16 if input.dtype == torch.bfloat16 else torch.float32
        steps, scale = _in_steps(input.flatten(0, -2), dtype)
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            steps, 1.0, 128, self.packed, self.scale, self.zero,
            None, 1.0, 0, dtype, "none", [], "",
        )  # fmt: skip
        product.mul_(scale)
        if self.bias is not None:
            product += self.bias
        return product.to(input.dtype).view(*input.shape[:-1], -1)

    def __getstate__(self) -> dict[str, Any]:
        # Packed numbers can be neither copied nor pickled.
        state = self.__dict__.copy()
        state["_buffers"] = {**self._buffers, "packed": self.packed.to_dense().T.contiguous()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.packed = _pack(self.packed)


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
