"""Matrices in the layout of the CPU's products, which else reorder them at every call."""

from collections.abc import Callable
from typing import NoReturn

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dllm_decode.models.network.transformer import Transformer

_DTYPES = (torch.bfloat16, torch.float32)
# The layout may depend on how many rows are expected: about a block's. One of a single row is slow
# in float32 with more.
_NUM_ROWS = 32


class PackedLinear(nn.Module):
    """A linear map that keeps its matrix in oneDNN's layout only.

    Attributes:
        weight: Opaque: it knows its shape and dtype, but is neither indexed, copied nor converted.
        bias: Plain, or `None`.
    """

    def __init__(self, weight: Float[Tensor, "O I"], bias: Float[Tensor, " O"] | None) -> None:
        super().__init__()
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _NUM_ROWS)
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    def forward(self, hidden: Float[Tensor, "... I"]) -> Float[Tensor, "... O"]:
        """Multiplies; ValueError where gradients would have to flow."""
        # The operator has none, and says so only once they are asked for.
        if torch.is_grad_enabled() and any(
            part.requires_grad for part in (hidden, *self.parameters())
        ):
            raise ValueError(
                "The products of a packed model have no gradients, got weights or an input that "
                "require some. Load it without packed, or call it under torch.no_grad()."
            )
        mapped: Tensor = torch.ops.mkldnn._linear_pointwise(
            hidden, self.weight, self.bias, "none", [], ""
        )
        return mapped

    # What torch would do instead ends in an error about opaque tensors, or halfway.

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> NoReturn:
        raise _as_it_was_loaded("moves or converts it")

    def _save_to_state_dict(self, *_: object) -> NoReturn:
        raise _as_it_was_loaded("reads its state dict")

    def _load_from_state_dict(self, *_: object) -> NoReturn:
        raise _as_it_was_loaded("writes its state dict")

    def __getstate__(self) -> NoReturn:
        raise _as_it_was_loaded("copies or pickles it")


def _as_it_was_loaded(call: str) -> ValueError:
    return ValueError(
        f"A packed model stays as it was loaded, got a call that {call}. Load it again without "
        "packed for that."
    )


def check_packing(device: torch.device, dtype: torch.dtype) -> None:
    """Raises ValueError if matrices of this dtype cannot be packed on this device."""
    if device.type != "cpu":
        raise ValueError(
            f"A packed model is on the CPU, got {str(device)!r}. Pass device='cpu', or leave "
            "packed out."
        )
    if dtype not in _DTYPES:
        raise ValueError(
            f"Packed weights are {' or '.join(map(str, _DTYPES))}, got {dtype}. Choose another "
            "dtype, or leave packed out."
        )
    # The operators are torch's own, so that a trial says more than their names.
    try:
        PackedLinear(torch.ones(2, 2, dtype=dtype), None)(torch.ones(1, 2, dtype=dtype))
    except (AttributeError, RuntimeError, TypeError) as error:
        raise ValueError(
            f"Packed weights need oneDNN's products of {dtype}, which this torch or this processor "
            f"does not have ({str(error).splitlines()[0]}). Leave packed out."
        ) from None


def pack_matrices(transformer: Transformer) -> None:
    """Replaces the matrices of all layers and of the head by packed ones, one at a time.

    A head that is the embedding too becomes a packed copy of it, since rows are looked up in the
    plain one.

    Args:
        transformer: A filled model, see `check_packing`; changed in place. It can then only be
            called, without gradients.
    """
    # By name: a list of modules would keep all plain matrices until the end.
    matrices = [name for name, part in transformer.named_modules() if isinstance(part, nn.Linear)]
    for name in matrices:
        owner, _, leaf = name.rpartition(".")
        module = transformer.get_submodule(owner)
        plain = getattr(module, leaf)
        setattr(module, leaf, PackedLinear(plain.weight, plain.bias))
    if transformer.config.tied_head:
        transformer.add_module("lm_head", PackedLinear(transformer.embedding.weight, None))
    transformer.packed = True
