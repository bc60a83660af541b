"""What all layers of one forward share, made once: rotations, mask, where keys and values go."""

from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dllm_decode.models.base import KVCache
from dllm_decode.models.network.config import NetworkConfig
from dllm_decode.models.network.fused import Fused, operations_for
from dllm_decode.models.network.operations import KVSlots, Operations, Rotation

# Numbers between the rows of a mask: else attention on CUDA copies it in every layer.
_ALIGNMENT = 8


class LayerContext(NamedTuple):
    """What all layers of one forward share.

    Attributes:
        operations: What is computed between the matrix products.
        rotation: Of each column.
        bias: Added to the attention scores, once for each query head that shares a key head, or
            one row for all queries; `None`: everything sees everything.
        target: Where fresh keys and values go; `None`: there is no memory.
        fused: See `operations_for`.
    """

    operations: Operations
    rotation: Rotation
    bias: Float[Tensor, "B 1 _ K"] | None
    target: KVSlots | None
    fused: Fused = "auto"


def make_context(
    shape: NetworkConfig,
    dtype: torch.dtype,
    positions: Int[Tensor, "B Q"],
    *,
    attend: Bool[Tensor, "B Q K"] | Bool[Tensor, "B 1 K"] | None,
    kv_cache: KVCache | None,
    slots: slice | Int[Tensor, "B Q"] | None,
    rows: slice | Int[Tensor, " B"] | None,
    fused: Fused = "auto",
) -> LayerContext:
    """Prepares a forward of a model of that shape and dtype; the rest is as in `ForwardInputs`."""
    operations = operations_for(positions.device, dtype, fused)
    rotation = _rotation(positions, shape, dtype)
    group = shape.num_heads // shape.num_kv_heads
    bias = None if attend is None else _as_bias(attend, dtype, group)
    target = None
    if kv_cache is not None and slots is not None:
        target = _target(slice(None) if rows is None else rows, slots, kv_cache.keys.shape[1])
    return LayerContext(operations, rotation, bias, target, fused)


def for_queries(plan: LayerContext, wanted: Int[Tensor, "B W"]) -> LayerContext:
    """Keeps the mask of the wanted queries only; keys and values stay those of all columns."""
    bias = plan.bias
    if bias is None or bias.shape[2] == 1:
        return plan
    num_copies = bias.shape[2] // plan.rotation.cos.shape[2]
    index = wanted.repeat(1, num_copies)[:, None, :, None].expand(-1, -1, -1, bias.shape[3])
    return plan._replace(bias=bias.gather(2, index))


def on_device(plan: LayerContext, device: torch.device, dtype: torch.dtype) -> LayerContext:
    """Moves the plan of a model of that dtype to where the next layers are."""
    target = plan.target
    if target is not None:
        rows, slots, index = target
        target = KVSlots(
            rows if isinstance(rows, slice) else rows.to(device),
            slots if isinstance(slots, slice) else slots.to(device),
            None if index is None else index.to(device),
        )
    bias = None if plan.bias is None else plan.bias.to(device)
    rotation = Rotation(*(part.to(device) for part in plan.rotation))
    return LayerContext(
        operations_for(device, dtype, plan.fused), rotation, bias, target, plan.fused
    )


@lru_cache(maxsize=32)
def _frequencies(head_dim: int, theta: float, device: torch.device) -> Float[Tensor, " D"]:
    # Not a buffer: building on the meta device leaves non-persistent buffers uninitialised, which
    # loads without complaint and answers NaN. On the CPU first: `pow` differs between devices.
    with torch.inference_mode(False), torch.device("cpu"):
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        return (1.0 / theta**exponents).to(device)


def _rotation(positions: Int[Tensor, "B Q"], shape: NetworkConfig, dtype: torch.dtype) -> Rotation:
    frequencies = _frequencies(shape.head_dim, shape.rope_theta, positions.device)
    angles = positions[:, None, :, None].float() * frequencies
    kept = torch.float32 if shape.rope_in_float32 else dtype
    cos, sin = angles.cos().to(kept), angles.sin().to(kept)
    return Rotation(torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))


def _as_bias(
    attend: Bool[Tensor, "B Q K"] | Bool[Tensor, "B 1 K"], dtype: torch.dtype, num_copies: int
) -> Float[Tensor, "B 1 _ K"]:
    # Finite, not -inf: a query that sees nothing answers something finite. Half of the least
    # number: kernels on CUDA multiply by log2(e). Once a forward: given booleans, attention would
    # convert them in every layer.
    B, num_queries, K = attend.shape
    num_copies = num_copies if num_queries > 1 else 1
    size = (B, 1, num_copies * num_queries, K + -K % _ALIGNMENT)
    bias = torch.zeros(size, dtype=dtype, device=attend.device)[..., :K]
    copies = bias.unflatten(2, (num_copies, num_queries))
    copies.masked_fill_(~attend[:, None, None], torch.finfo(dtype).min / 2)
    return bias


def _target(
    rows: slice | Int[Tensor, " B"], slots: slice | Int[Tensor, "B Q"], num_rows: int
) -> KVSlots:
    if isinstance(slots, slice):
        return KVSlots(rows, slots, None)
    index = rows
    if isinstance(index, slice):
        index = torch.arange(num_rows, device=slots.device)[index]
    return KVSlots(rows, slots, index[:, None])
