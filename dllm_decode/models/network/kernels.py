# mypy: disable-error-code="import-not-found, import-untyped, misc"
"""The Triton kernels of `fused`, which calls them."""

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def add_norm(
    hidden, update, summed, normed, weight, eps, in_float32: tl.constexpr,
    size, block: tl.constexpr,
):  # fmt: skip
    """Adds up and normalises one column."""
    lane = tl.arange(0, block)
    inside = lane < size
    # In 64 bits: a batch of long rows has more than 2^31 numbers.
    place = tl.program_id(0).to(tl.int64) * size + lane
    x = tl.load(hidden + place, mask=inside, other=0.0)
    if update is not None:
        more = tl.load(update + place, mask=inside, other=0.0)
        x = (x.to(tl.float32) + more.to(tl.float32)).to(x.dtype)
        tl.store(summed + place, x, mask=inside)
    scale = tl.load(weight + lane, mask=inside, other=0.0)
    wide = x.to(tl.float32)
    y = _scaled(wide, tl.sum(wide * wide, 0) / size, scale, eps, in_float32, x.dtype)
    tl.store(normed + place, y, mask=inside)


# Whether these are 1 or divisible does not matter, and would make a forward compile kernels that
# only its recording needs: that is recorded with other tensors than it was tried with.
@triton.jit(
    do_not_specialize=(
        "num_columns", "num_rows", "slots_row_stride", "slots_column_stride", "num_slots"
    ),
    do_not_specialize_on_alignment=("rows", "slots"),
)  # fmt: skip
@no_type_check
def rotate_and_store(
    heads, cos, sin, num_columns,
    query_weight, query_eps, query_in_float32: tl.constexpr,
    key_weight, key_eps, key_in_float32: tl.constexpr,
    query, query_row_stride, query_head_stride, query_column_stride,
    keys, keys_row_stride, keys_head_stride, keys_slot_stride, keys_stride,
    values, values_row_stride, values_head_stride, values_slot_stride, values_stride,
    rows, num_rows, slots, slots_row_stride, slots_column_stride, num_slots,
    num_heads: tl.constexpr, num_kv_heads: tl.constexpr, head_dim: tl.constexpr,
    block: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """Turns a tile of a column's heads: of its queries, or of its keys, which go with the values.

    Args are tensors and their strides; see `Operations` for what is computed.
    """
    query_tiles: tl.constexpr = (num_heads + tile - 1) // tile
    half: tl.constexpr = head_dim // 2
    # In 64 bits, as above.
    at = tl.program_id(0).to(tl.int64)
    row, column = at // num_columns, at % num_columns
    number = tl.program_id(1)
    lane = tl.arange(0, tile)[:, None].to(tl.int64)
    pair = tl.arange(0, block)[None, :]
    heads += at * (num_heads + 2 * num_kv_heads) * head_dim + pair
    # Of the second half, where the sine has its own sign.
    c = tl.load(cos + at * head_dim + half + pair, mask=pair < half, other=0.0)
    s = tl.load(sin + at * head_dim + half + pair, mask=pair < half, other=0.0)
    if number < query_tiles:
        head = number * tile + lane
        inside = (head < num_heads) & (pair < half)
        x, y = _halves(heads + head * head_dim, half, inside)
        x, y = _normed(x, y, query_weight, pair, half, query_eps, query_in_float32)
        x, y = _turned(x, y, c, s)
        query += row * query_row_stride + column * query_column_stride
        _put(query + head * query_head_stride, 1, pair, half, x, y, inside)
    else:
        slot = column
        if slots is not None:
            slot = tl.load(slots + row * slots_row_stride + column * slots_column_stride)
        if rows is not None:
            row = tl.load(rows + row)
        head = (number - query_tiles) * tile + lane
        inside = (head < num_kv_heads) & (pair < half)
        # Nothing is written outside the KV cache.
        inside = inside & (row >= 0) & (row < num_rows) & (slot >= 0) & (slot < num_slots)
        x, y = _halves(heads + (num_heads + head) * head_dim, half, inside)
        x, y = _normed(x, y, key_weight, pair, half, key_eps, key_in_float32)
        x, y = _turned(x, y, c, s)
        keys += row * keys_row_stride + slot * keys_slot_stride
        _put(keys + head * keys_head_stride, keys_stride, pair, half, x, y, inside)
        x, y = _halves(heads + (num_heads + num_kv_heads + head) * head_dim, half, inside)
        values += row * values_row_stride + slot * values_slot_stride
        _put(values + head * values_head_stride, values_stride, pair, half, x, y, inside)


@triton.jit
@no_type_check
def swiglu(gate_up, mixed, size, block: tl.constexpr):
    """Computes some numbers of one column."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1) * block + tl.arange(0, block)
    inside = lane < size
    gate = tl.load(gate_up + 2 * row * size + lane, mask=inside, other=0.0)
    up = tl.load(gate_up + (2 * row + 1) * size + lane, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    opened = _rounded(wide / (1.0 + tl.exp(-wide)), gate.dtype)
    tl.store(mixed + row * size + lane, (opened * up.to(tl.float32)).to(gate.dtype), mask=inside)


@triton.jit
@no_type_check
def _scaled(x, mean_square, weight, eps, in_float32: tl.constexpr, dtype: tl.constexpr):
    unit = x * tl.rsqrt(mean_square + eps)
    if not in_float32:
        unit = _rounded(unit, dtype)
    return (unit * weight.to(tl.float32)).to(dtype)


@triton.jit
@no_type_check
def _halves(heads, half: tl.constexpr, inside):
    return (
        tl.load(heads, mask=inside, other=0.0),
        tl.load(heads + half, mask=inside, other=0.0),
    )


@triton.jit
@no_type_check
def _normed(first, second, weight, pair, half: tl.constexpr, eps, in_float32: tl.constexpr):
    if weight is not None:
        x, y = first.to(tl.float32), second.to(tl.float32)
        mean_square = tl.sum(x * x + y * y, 1)[:, None] / (2 * half)
        x_scale, y_scale = _halves(weight + pair, half, pair < half)
        first = _scaled(x, mean_square, x_scale, eps, in_float32, first.dtype)
        second = _scaled(y, mean_square, y_scale, eps, in_float32, second.dtype)
    return first, second


@triton.jit
@no_type_check
def _turned(first, second, cos, sin):
    x, y = first.to(tl.float32), second.to(tl.float32)
    c, s = cos.to(tl.float32), sin.to(tl.float32)
    # The tables say in which dtype to rotate.
    a = _rounded(x * c, cos.dtype) - _rounded(y * s, cos.dtype)
    b = _rounded(y * c, cos.dtype) + _rounded(x * s, cos.dtype)
    return a.to(first.dtype), b.to(first.dtype)


@triton.jit
@no_type_check
def _put(place, stride, pair, half: tl.constexpr, first, second, inside):
    tl.store(place + pair * stride, first, mask=inside)
    tl.store(place + (pair + half) * stride, second, mask=inside)


@triton.jit
@no_type_check
def _rounded(x, dtype: tl.constexpr):
    return x.to(dtype).to(tl.float32)
