# mypy: disable-error-code="import-not-found, import-untyped, misc"
"""The operations of a layer as Triton kernels, for forwards without gradients.

Half precision rounds where `plain` does; sums differ by their order. Importing this module imports
Triton; see `operations_for`, which does so on CUDA only.
"""

from functools import cache
from subprocess import CalledProcessError
from typing import Any, NamedTuple

import torch
import triton
from jaxtyping import Float, Int
from torch import Tensor
from triton.errors import TritonError

from dllm_decode.models.network import attention_kernels, kernels
from dllm_decode.models.network import operations_torch as plain
from dllm_decode.models.network.operations import (
    Heads,
    KVSlots,
    LayerKV,
    Normed,
    Projected,
    Rotation,
    Scaling,
    Stream,
)

COMPILE_ERRORS = (TritonError, RuntimeError, OSError, CalledProcessError, AssertionError)
"""What a launch raises where a GPU is too old, a C compiler or a header is missing, or torch was
built without CUDA.
"""

# What one program computes: numbers of the MLP, and heads of one kind and column.
_NUM_LANES = 1024
_NUM_HEADS = 4
# Limits of attention: the sides of a tile, the bytes of a tile of keys, the shares of a row's keys.
# The interpreter has no processors to count, so it takes the number of an H100.
_LEAST_SIDE = 16
_MOST_QUERIES = 32
_MOST_KEYS = 64
_TILE_BYTES = 16_384
_MOST_SHARES = 16
_NUM_PROCESSORS = 132
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


def rotate_and_store(projected: Projected, rotation: Rotation, store: LayerKV | None) -> Heads:
    """See `Operations`; what would go outside the KV cache goes nowhere, where `plain` raises."""
    heads, num_kv_heads, scalings = projected
    B, Q, C, D = heads.shape
    if rotation.cos.shape[-1] < D:
        # The kernel turns whole heads.
        return plain.rotate_and_store(projected, rotation, store)
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


def attend(heads: Heads, bias: Float[Tensor, "B 1 _ K"] | None) -> Float[Tensor, "B Q C"]:
    """See `Operations`; few queries leave most of a GPU idle, so their keys are split.

    Each program attends to one share of a row's keys, and a second kernel adds the shares up: in
    float32, and always in the same order. Where there are programs enough without shares, or keys
    for one share only, `plain` attends.

    Source: Dao, Haziza, Massa and Sizov 2023, "Flash-Decoding for long-context inference",
        https://pytorch.org/blog/flash-decoding/.
    Differs: A share leaves its peak and its sum apart, not their logarithm: where a query sees
        nothing, all scores are equal, and it gets the mean of all values, as from `plain`.
    """
    tiling = _tiling(heads)
    if heads.key.shape[2] <= tiling.keys_per_share:
        return plain.attend(heads, bias)
    return _attend_by_shares(heads, bias, tiling)


class _Tiling(NamedTuple):
    """How attention is divided among programs.

    Attributes:
        lanes: Components of a head, rounded up to a power of two.
        queries: Of a tile; query heads that share a key head are further queries of it.
        keys: Of a tile.
        keys_per_share: A multiple of `keys`, so small that most processors have a program.
    """

    lanes: int
    queries: int
    keys: int
    keys_per_share: int


def _tiling(heads: Heads) -> _Tiling:
    (B, H, Q, D), (G, K) = heads.query.shape, heads.key.shape[1:3]
    lanes = max(_LEAST_SIDE, triton.next_power_of_2(D))
    side = _TILE_BYTES // (lanes * heads.key.element_size())
    keys = min(_MOST_KEYS, max(_LEAST_SIDE, side))
    queries = max(_LEAST_SIDE, triton.next_power_of_2(H // G * Q))
    queries = min(_MOST_QUERIES, keys, queries)
    num_programs = max(1, B * G * triton.cdiv(H // G * Q, queries))
    num_shares = min(_MOST_SHARES, _num_processors(heads.query.device) // num_programs)
    return _Tiling(lanes, queries, keys, keys * triton.cdiv(K, keys * max(1, num_shares)))


def _attend_by_shares(
    heads: Heads, bias: Float[Tensor, "B 1 _ K"] | None, tiling: _Tiling
) -> Float[Tensor, "B Q C"]:
    query, key, value = (_dense(part) for part in heads)
    (B, H, Q, D), (G, K) = query.shape, key.shape[1:3]
    num_queries, num_shares = H // G * Q, triton.cdiv(K, tiling.keys_per_share)
    mixed = query.new_empty((num_shares, B * H * Q, D), dtype=torch.float32)
    sums, peaks = query.new_empty((2, num_shares, B * H * Q), dtype=torch.float32)
    _launch(
        attention_kernels.attend_share,
        (B * G, triton.cdiv(num_queries, tiling.queries), num_shares),
        query, *query.stride()[:3], key, *key.stride()[:3], value, *value.stride()[:3],
        *_added(bias), mixed, sums, peaks, num_queries, Q, G, K, D**-0.5, D, *tiling, num_warps=4,
    )  # fmt: skip
    out = query.new_empty((B, Q, H * D))
    _launch(
        attention_kernels.add_shares, (B * H * Q,),
        mixed, sums, peaks, out, Q, H, num_shares, D, tiling.lanes, _MOST_SHARES, num_warps=4,
    )  # fmt: skip
    return out


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


def _dense(part: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Returns it with its last components side by side."""
    return part if part.stride(-1) == 1 else part.contiguous()


def _added(
    bias: Float[Tensor, "B 1 _ K"] | None,
) -> tuple[Float[Tensor, "B 1 _ K"] | None, int, int, bool]:
    """Returns the bias, its strides, and whether all queries share it."""
    if bias is None:
        return (None, 0, 0, True)
    bias = _dense(bias)
    return (bias, bias.stride(0), bias.stride(2), bias.shape[2] == 1)


@cache
def _num_processors(device: torch.device) -> int:
    """Counts the processors that attention over split keys can use."""
    if device.type != "cuda":
        return _NUM_PROCESSORS
    properties = torch.cuda.get_device_properties(device)
    # Before Ampere they have too little shared memory for these tiles: torch attends.
    return int(properties.multi_processor_count) if properties.major >= 8 else 0


def _launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, num_warps: int) -> None:
    if 0 in grid:
        return
    # Triton launches on the current device, whichever holds the tensors.
    with torch.cuda.device_of(arguments[0]):
        kernel[grid](*arguments, num_warps=num_warps, **_OPTIONS)
