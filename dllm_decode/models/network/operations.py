"""Operations of a layer between its matrix products: rotation, storing, attention, SwiGLU.

In half precision, each operation rounds where the authors' code does.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, library
from torch.nn import functional as F

from dllm_decode.core.model import KVCache


class Rotation(NamedTuple):
    """Cosines and sines of the rotation of columns, in the dtype of the rotation.

    The first R of a head's D components turn; the others stay as they are.

    Attributes:
        cos: Component i turns with component i + R / 2, so both halves are the same.
        sin: Negative in the first half.
    """

    cos: Float[Tensor, "B 1 Q R"]
    sin: Float[Tensor, "B 1 Q R"]


class KVSlots(NamedTuple):
    """Where fresh keys and values go.

    Attributes:
        kv_cache: Keys and values of all layers.
        rows: Rows of the KV cache that are written and read.
        slots: Where in these rows fresh keys and values go.
        row_index: The rows as a column, to index together with `slots` where those are a tensor.
    """

    kv_cache: KVCache
    rows: slice | Int[Tensor, " B"]
    slots: slice | Int[Tensor, "B Q"]
    row_index: Int[Tensor, "B 1"] | None


def attend(
    query: Float[Tensor, "B H Q D"],
    key: Float[Tensor, "B G K D"],
    value: Float[Tensor, "B G K D"],
    bias: Float[Tensor, "B 1 _ K"] | None,
) -> Float[Tensor, "B Q C"]:
    """Attends from every query to every key, and joins the heads of each column.

    Query heads divided by key heads share a key head, in order; for `bias` see `LayerContext`.
    """
    # Query heads that share a key head become further queries of that head, so that no kernel
    # repeats keys or values. Masks are in the bias, so that no causal order forbids this.
    group = query.shape[1] // key.shape[1]
    if group > 1:
        query = rearrange(query, "b (g n) q d -> b g (n q) d", n=group)
    mixed = _attention(query, key, value, bias)
    if group > 1:
        mixed = rearrange(mixed, "b g (n q) d -> b (g n) q d", n=group)
    return mixed.transpose(1, 2).flatten(2)


def swiglu(gate_up: Float[Tensor, "B Q C"]) -> Float[Tensor, "B Q M"]:
    """Returns silu(gate) * up of two halves."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


def _attention(
    query: Float[Tensor, "B G Q D"],
    key: Float[Tensor, "B G K D"],
    value: Float[Tensor, "B G K D"],
    bias: Float[Tensor, "B 1 _ K"] | None,
) -> Float[Tensor, "B G Q D"]:
    # With weights in half precision, gradients must be those of the model that decodes, but
    # written-out attention rounds differently. Under autocast, weights are in float32.
    is_half = query.dtype.itemsize == 2 and not torch.is_autocast_enabled("cpu")
    if query.device.type != "cpu" or not query.requires_grad or is_half:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
    # Written out, as the backward of torch's kernel is slow on a CPU; `torch.compile` fuses this.
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    if bias is not None:
        # Finite, so that a column of padding that sees nothing does not become NaN.
        scores = scores + bias.to(scores.dtype).clamp(min=torch.finfo(scores.dtype).min)
    mixed: Tensor = scores.softmax(-1).to(value.dtype) @ value
    return mixed


def rotate(heads: Float[Tensor, "B H Q D"], rotation: Rotation) -> Float[Tensor, "B H Q D"]:
    """Turns the first components of each head."""
    dim = rotation.cos.shape[-1]
    if dim < heads.shape[-1]:
        turned = rotate(heads[..., :dim], rotation)
        return torch.cat((turned, heads[..., dim:]), -1)
    first, second = heads.chunk(2, -1)
    # Float32 tables lift the product to float32 by themselves.
    turned = heads * rotation.cos + torch.cat((second, first), -1) * rotation.sin
    return turned.to(heads.dtype)


class Pointwise(NamedTuple):
    """Operations that are several kernels eagerly, but one kernel if they are compiled."""

    rotate: Callable[[Float[Tensor, "B H Q D"], Rotation], Float[Tensor, "B H Q D"]]
    swiglu: Callable[[Float[Tensor, "B Q C"]], Float[Tensor, "B Q M"]]


EAGER = Pointwise(rotate, swiglu)
# Each size is compiled once.
_MOST_SIZES = 128


@lru_cache(maxsize=1)
def compiled_pointwise() -> Pointwise:
    """Returns the operations through `torch.compile`, with the bits of the eager ones.

    Norms are not among them, because the compiler sums in another order.
    """
    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, _MOST_SIZES)
    options: dict[str, Any] = {"emulate_precision_casts": True}
    return Pointwise(
        *(torch.compile(work, fullgraph=True, dynamic=False, options=options) for work in EAGER)
    )


def store(
    buffer: Float[Tensor, "N R G K D"], index: int, fresh: Float[Tensor, "B G Q D"], target: KVSlots
) -> Float[Tensor, "B G K D"]:
    """Writes in place, and returns the buffer's rows of this call: a view if they are a slice."""
    if isinstance(target.slots, slice):
        buffer[index, target.rows, :, target.slots] = fresh
    else:
        assert target.row_index is not None
        write = _write_slots_at_once if torch.compiler.is_compiling() else _write_slots
        write(buffer, index, fresh, target.row_index, target.slots)
    return buffer[index][target.rows]


def _write_slots(
    buffer: Tensor, index: int, fresh: Tensor, row_index: Tensor, slots: Tensor
) -> None:
    buffer[index][row_index, :, slots] = fresh.transpose(1, 2)


# As one operation, because Inductor does not see that a write to a view of a view is in place, and
# would copy the whole buffer for every layer. Not by `custom_op`, whose Python costs 17 us a call.
_OPERATIONS = library.Library("dllm_decode", "DEF")
_OPERATIONS.define(
    "write_slots(Tensor(a!) buffer, int index, Tensor fresh, Tensor row_index, Tensor slots) -> ()"
)
_OPERATIONS.impl("write_slots", _write_slots, "CompositeExplicitAutograd")
_write_slots_at_once = torch.ops.dllm_decode.write_slots.default
