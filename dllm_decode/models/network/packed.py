"""Weights in the order in which oneDNN multiplies by them.

Without packing, a CPU reorders a matrix for each product with it. In bfloat16, packing reduces a
product with a few dozen columns to half to two thirds of the time; results are the same bit by bit.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


def has_bfloat16() -> bool:
    """Returns whether oneDNN multiplies in bfloat16 by this CPU's own instructions."""
    is_there = torch.backends.mkldnn.is_available()
    return is_there and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def can_pack(weight: Tensor) -> bool:
    """Returns whether products with a matrix have the same result, and are faster, if packed."""
    is_plain = weight.device.type == "cpu" and type(weight.data) is Tensor
    return is_plain and weight.dtype == torch.bfloat16 and has_bfloat16()


class Packable(nn.Module):
    """A module whose matrices can be packed, for forwards without gradients.

    While its matrix is packed, a parameter is the same object with the same shape, but NaN
    everywhere, so that no weight is held twice. A forward with gradients, a move to another device
    or type, a state dict and a copy unpack the weights first. Other code that reads a parameter
    calls `unpack`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._packed: dict[str, list[Tensor]] = {}

    @property
    def is_packed(self) -> bool:
        """True if the matrices are packed."""
        return bool(self._packed)

    @torch.inference_mode(False)
    def pack(self) -> None:
        """Packs the matrices, also those in a stack, that can be packed and are not packed yet."""
        for name, weight in self.named_parameters(recurse=False):
            if weight.ndim > 1 and name not in self._packed and can_pack(weight):
                stack = weight.data if weight.ndim == 3 else weight.data[None]
                reorder = torch.ops.mkldnn._reorder_linear_weight
                self._packed[name] = [reorder(matrix.contiguous()) for matrix in stack]
                weight.data = torch.full_like(weight.data[:1, :1], torch.nan).expand_as(weight)

    @torch.inference_mode(False)
    def unpack(self) -> None:
        """Puts the weights back into the parameters; does nothing if they are not packed."""
        while self._packed:
            name, stack = self._packed.popitem()
            dense = [matrix.to_dense() for matrix in stack]
            weight = self.get_parameter(name)
            weight.data = torch.stack(dense) if weight.ndim == 3 else dense[0]

    def multiply(
        self, columns: Float[Tensor, "... I"], name: str, number: int = 0
    ) -> Float[Tensor, "... O"]:
        """Multiplies columns by a matrix; `number` says which one of a stack."""
        if self._packed and torch.is_grad_enabled():
            self.unpack()
        # Read here, because `get_parameter` and attributes of modules take microseconds.
        weight, bias = self._parameters[name], self._parameters.get("bias")
        if name in self._packed:
            matrix = self._packed[name][number]
            product: Tensor = torch.ops.mkldnn._linear_pointwise(
                columns, matrix, bias, "none", [], ""
            )
            return product
        assert weight is not None
        return F.linear(columns, weight[number] if weight.ndim == 3 else weight, bias)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Packable":
        self.unpack()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # in torch
        return self

    def _save_to_state_dict(self, *args: Any) -> None:
        self.unpack()
        super()._save_to_state_dict(*args)

    def _load_from_state_dict(self, *args: Any) -> None:
        self.unpack()
        super()._load_from_state_dict(*args)

    def __getstate__(self) -> object:
        self.unpack()
        return self.__dict__.copy()


class Linear(Packable, nn.Linear):
    """A linear map whose weight can be packed."""

    def forward(self, input: Float[Tensor, "... I"]) -> Float[Tensor, "... O"]:
        return self.multiply(input, "weight")
