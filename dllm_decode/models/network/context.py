"""Groups of rows in a layer: the context of each, and the columns of all as one row.

Columns are joined so that a matrix multiplies all of them at once. Two groups, of two rows of three
columns and of one row of two columns:

    a a a
    b b b     ->   a a a b b b c c
    c c
"""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from dllm_decode.core.model import ForwardInputs, KVCache
from dllm_decode.models.network.config import NetworkConfig
from dllm_decode.models.network.operations import EAGER, KVSlots, Pointwise, Rotation

# Rows of a mask start at multiples of this; otherwise attention on CUDA copies it in each layer.
_ALIGNMENT = 8


class LayerContext(NamedTuple):
    """The inputs of a layer for one group of rows; only `wanted` differs by layer.

    Attributes:
        rotation: Of each column.
        bias: Added to the attention scores, once for each query head that shares a key head, or
            one row for all queries; `None`: everything sees everything.
        kv_slots: Where fresh keys and values go; `None`: there is no KV cache.
        query_scale: Factor of the rotated queries; `None`: no factor.
        wanted: Columns that the layer returns; `None`: all of them.
        pointwise: How rotation and SwiGLU are computed.
    """

    rotation: Rotation
    bias: Float[Tensor, "B 1 _ K"] | None
    kv_slots: KVSlots | None
    query_scale: Float[Tensor, "B 1 Q 1"] | None = None
    wanted: Int[Tensor, "B W"] | None = None
    pointwise: Pointwise = EAGER

    @property
    def size(self) -> tuple[int, int]:
        """Rows and computed columns of the group."""
        num_rows, _, num_columns, _ = self.rotation.cos.shape
        return num_rows, num_columns


def make_context(
    config: NetworkConfig,
    dtype: torch.dtype,
    inputs: ForwardInputs,
    frequencies: Float[Tensor, " F"],
    pointwise: Pointwise = EAGER,
) -> LayerContext:
    """Prepares a forward in a dtype; ValueError if only one of KV cache and slots is there."""
    positions, kv_cache = inputs.positions, inputs.kv_cache
    if (kv_cache is None) != (inputs.slots is None):
        raise ValueError("A KV cache and slots must go together: pass both, or neither.")
    rotation = config.rope.rotation(positions, dtype, frequencies)
    num_copies = config.num_heads // config.num_kv_heads
    bias = None if inputs.attend is None else _as_bias(inputs.attend, dtype, num_copies)
    target = None
    if kv_cache is not None and inputs.slots is not None:
        target = _target(kv_cache, rows_of(inputs), inputs.slots)
    query_scale = config.rope.query_scale(positions, dtype)
    return LayerContext(rotation, bias, target, query_scale, pointwise=pointwise)


def rows_of(inputs: ForwardInputs) -> slice | Int[Tensor, " B"]:
    """Returns the rows of the KV cache as an index for tensors of the model's device."""
    if isinstance(inputs.rows, Tensor):
        return inputs.rows.to(inputs.tokens.device, non_blocking=True)
    return slice(None) if inputs.rows is None else inputs.rows


def for_queries(context: LayerContext, wanted: Int[Tensor, "B W"] | None) -> LayerContext:
    """Keeps only the wanted queries and their masks; keys and values are those of all columns."""
    if wanted is None:
        return context
    wanted = wanted.to(context.rotation.cos.device)
    context = context._replace(wanted=wanted)
    bias = context.bias
    if bias is None or bias.shape[2] == 1:
        return context
    num_copies = bias.shape[2] // context.rotation.cos.shape[2]
    index = wanted.repeat(1, num_copies)[:, None, :, None].expand(-1, -1, -1, bias.shape[3])
    return context._replace(bias=bias.gather(2, index))


def on_device(context: LayerContext, device: torch.device) -> LayerContext:
    """Moves a context to the device of the next layers."""

    def moved(part: Any) -> Any:
        return part.to(device) if isinstance(part, Tensor) else part

    return context._replace(
        rotation=Rotation(*map(moved, context.rotation)),
        bias=moved(context.bias),
        kv_slots=None if context.kv_slots is None else KVSlots(*map(moved, context.kv_slots)),
        query_scale=moved(context.query_scale),
    )


def join_columns(groups: Sequence[Shaped[Tensor, "_ _ ..."]]) -> Shaped[Tensor, "_ _ ..."]:
    """Returns the columns of all groups in one row; a single group is returned unchanged."""
    if len(groups) == 1:
        return groups[0]
    return torch.cat([group.flatten(0, 1) for group in groups])[None]


def split_columns(
    joined: Shaped[Tensor, "_ _ ..."], sizes: Sequence[tuple[int, ...]]
) -> list[Shaped[Tensor, "_ _ ..."]]:
    """Undoes `join_columns` for groups of these rows and columns each; the results are views."""
    if len(sizes) == 1:
        return [joined]
    parts = joined[0].split([prod(size) for size in sizes])
    return [part.unflatten(0, size) for part, size in zip(parts, sizes, strict=True)]


def _as_bias(
    attend: Bool[Tensor, "B Q K"] | Bool[Tensor, "B 1 K"], dtype: torch.dtype, num_copies: int
) -> Float[Tensor, "B 1 _ K"]:
    # Finite, not -inf, so that a query that sees nothing has a finite result. Half of the least
    # number, because kernels on CUDA multiply by log2(e). Once a forward, because attention would
    # convert booleans in every layer.
    B, num_queries, K = attend.shape
    num_copies = num_copies if num_queries > 1 else 1
    size = (B, 1, num_copies * num_queries, K + -K % _ALIGNMENT)
    bias = torch.zeros(size, dtype=dtype, device=attend.device)[..., :K]
    copies = bias.unflatten(2, (num_copies, num_queries))
    copies.masked_fill_(~attend[:, None, None], torch.finfo(dtype).min / 2)
    return bias


def _target(
    kv_cache: KVCache, rows: slice | Int[Tensor, " B"], slots: slice | Int[Tensor, "B Q"]
) -> KVSlots:
    if isinstance(slots, slice):
        return KVSlots(kv_cache, rows, slots, None)
    index = rows
    if isinstance(index, slice):
        index = torch.arange(kv_cache.keys.shape[1], device=slots.device)[index]
    return KVSlots(kv_cache, rows, slots, index[:, None])
