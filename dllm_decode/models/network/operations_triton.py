# mypy: disable-error-code="import-not-found, import-untyped, misc"
"""The operations of a layer as one Triton kernel each, for forwards without gradients.

Half precision rounds where `plain` does; sums differ by their order. Importing this module imports
Triton; see `operations_for`, which does so on CUDA only.
"""

from subprocess import CalledProcessError
from typing import Any

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor
from triton.errors import TritonError

from dllm_decode.models.network import kernels
from dllm_decode.models.network import operations_torch as plain
from dllm_decode.models.network.operations import (
    Heads,
    KVSlots,
    LayerKV,
    Normed,
    Rotation,
    Scaling,
    Stream,
)

COMPILE_ERRORS = (TritonError, RuntimeError, OSError, CalledProcessError)
"""What a launch raises where a GPU is too old, or a C compiler or a header is missing."""

# What one program computes: numbers of the MLP, and heads of one kind and column.
_NUM_LANES = 1024
_NUM_HEADS = 4
# A fused multiplication and addition would skip a rounding.
_OPTIONS = {"enable_fp_fusion": False}
_NO_SCALING = (None, 0.0, False)
_EVERYTHING = KVSlots(slice(None), slice(None), None)


def add_norm(stream: Stream, scaling: Scaling) -> Normed:
    """See `Operations`; one program holds a whole column."""
    hidden = stream.hidden.contiguous()
    update = None if stream.update is None else stream.update.contiguous()
    summed = hidden if update is None else torch.empty_like(hidden)
    normed = torch.empty_like(hidden)
    size = hidden.shape[-1]
    block = triton.next_power_of_2(size)
    _launch(
        kernels.add_norm, (hidden.shape[0] * hidden.shape[1],),
        hidden, update, summed, normed, *scaling, size, block,
        num_warps=min(max(block // 512, 1), 16),
    )  # fmt: skip
    return Normed(summed, normed)


def rotate_and_store(
    heads: Float[Tensor, "B Q C D"],
    rotation: Rotation,
    store: LayerKV | None,
    *,
    num_kv_heads: int,
    scalings: tuple[Scaling, Scaling] | None,
) -> Heads:
    """See `Operations`; what would go outside the KV cache goes nowhere, where `plain` raises."""
    B, Q, C, D = heads.shape
    if rotation.cos.shape[-1] < D:
        # The kernel turns whole heads.
        return plain.rotate_and_store(
            heads, rotation, store, num_kv_heads=num_kv_heads, scalings=scalings
        )
    num_heads = C - 2 * num_kv_heads
    if store is None:
        fresh = heads.new_empty((2, B, num_kv_heads, Q, D))
        store = LayerKV(fresh[0], fresh[1], _EVERYTHING)
    keys, values, target = store
    query = _new_queries(heads, num_heads, num_kv_heads)
    query_scaling, key_scaling = (_NO_SCALING, _NO_SCALING) if scalings is None else scalings
    num_tiles = triton.cdiv(num_heads, _NUM_HEADS) + triton.cdiv(num_kv_heads, _NUM_HEADS)
    _launch(
        kernels.rotate_and_store, (B * Q, num_tiles),
        heads.contiguous(), *(table.contiguous() for table in rotation), Q,
        *query_scaling, *key_scaling, query, *query.stride()[:3],
        *_strided(keys, target), *_strided(values, target), *_indices(target, keys),
        num_heads, num_kv_heads, D, triton.next_power_of_2(D // 2), _NUM_HEADS, num_warps=1,
    )  # fmt: skip
    return Heads(query, keys[target.rows], values[target.rows])


def swiglu(gate_up: Float[Tensor, "B Q C"]) -> Float[Tensor, "B Q M"]:
    """See `Operations`."""
    B, Q, C = gate_up.shape
    mixed = gate_up.new_empty((B, Q, C // 2))
    grid = (B * Q, triton.cdiv(C // 2, _NUM_LANES))
    _launch(kernels.swiglu, grid, gate_up.contiguous(), mixed, C // 2, _NUM_LANES, num_warps=4)
    return mixed


def _new_queries(
    heads: Float[Tensor, "B Q C D"], num_heads: int, num_kv_heads: int
) -> Float[Tensor, "B H Q D"]:
    # Attention lays out its results as its queries. Column by column, joining the heads of a
    # column is free; where several share a key head, joining these with the columns is.
    B, Q, _, D = heads.shape
    if num_heads == num_kv_heads:
        return heads.new_empty((B, Q, num_heads, D)).transpose(1, 2)
    return heads.new_empty((B, num_heads, Q, D))


def _strided(part: Float[Tensor, "R G K D"], target: KVSlots) -> tuple[Tensor | int, ...]:
    """Returns where the kernel writes, slices applied, and the strides there."""
    if isinstance(target.rows, slice):
        part = part[target.rows]
    if isinstance(target.slots, slice):
        part = part[:, :, target.slots]
    return (part, *part.stride())


def _indices(
    target: KVSlots, keys: Float[Tensor, "R G K D"]
) -> tuple[Int[Tensor, " B"] | Int[Tensor, "B Q"] | int | None, ...]:
    """Returns what is left to the kernel: rows and slots that are no slices, and how many are."""
    rows = None if isinstance(target.rows, slice) else target.rows.contiguous()
    slots = None if isinstance(target.slots, slice) else target.slots
    strides = (0, 0) if slots is None else slots.stride()
    return (rows, keys.shape[0], slots, *strides, keys.shape[2])


def _launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, num_warps: int) -> None:
    if 0 in grid:
        return
    # Triton launches on the current device, whichever holds the tensors.
    with torch.cuda.device_of(arguments[0]):
        kernel[grid](*arguments, num_warps=num_warps, **_OPTIONS)
