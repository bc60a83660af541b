# mypy: disable-error-code="import-not-found, import-untyped, misc"
"""The Triton kernels of attention whose keys are split: of one share, and of the shares' sum."""

from typing import no_type_check

import triton
import triton.language as tl

_LOG2_E = tl.constexpr(1.4426950408889634)


# Sizes that vary from forward to forward make no kernels of their own: see `kernels`.
@triton.jit(
    do_not_specialize=(
        "num_queries", "num_columns", "num_keys", "keys_per_share", "bias_row_stride",
        "bias_column_stride",
    ),
    do_not_specialize_on_alignment=("bias",),
)  # fmt: skip
@no_type_check
def attend_share(
    query, query_row_stride, query_head_stride, query_column_stride,
    key, key_row_stride, key_head_stride, key_slot_stride,
    value, value_row_stride, value_head_stride, value_slot_stride,
    bias, bias_row_stride, bias_column_stride, bias_is_shared: tl.constexpr,
    mixed, sums, peaks,
    num_queries, num_columns, num_kv_heads, num_keys, scale, head_dim: tl.constexpr,
    block: tl.constexpr, tile: tl.constexpr, step: tl.constexpr, keys_per_share,
):  # fmt: skip
    """Attends from a tile of one key head's queries to one share of the keys.

    The queries of a key head are the columns of all its query heads, head after head. Left are
    the values' sum, weighted by exp2(score - peak), the sum of these weights, and the peak.
    """
    # In 64 bits, as there.
    pair = tl.program_id(0).to(tl.int64)
    row, kv_head = pair // num_kv_heads, pair % num_kv_heads
    number = tl.program_id(1) * tile + tl.arange(0, tile)
    is_query = number < num_queries
    head = kv_head * (num_queries // num_columns) + number // num_columns
    column = (number % num_columns).to(tl.int64)
    lane = tl.arange(0, block)
    is_lane = lane < head_dim
    query += row * query_row_stride + head * query_head_stride + column * query_column_stride
    q = tl.load(query[:, None] + lane, mask=is_query[:, None] & is_lane, other=0.0)
    key += row * key_row_stride + kv_head * key_head_stride
    value += row * value_row_stride + kv_head * value_head_stride
    first = tl.program_id(2) * keys_per_share
    end = tl.minimum(first + keys_per_share, num_keys)
    peak = tl.full([tile], float("-inf"), tl.float32)
    total = tl.zeros([tile], tl.float32)
    summed = tl.zeros([tile, block], tl.float32)
    for start in range(first, end, step):
        slot = (start + tl.arange(0, step)).to(tl.int64)
        is_slot = slot < end
        inside = is_slot[:, None] & is_lane
        k = tl.load(key + slot[:, None] * key_slot_stride + lane, mask=inside, other=0.0)
        score = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * _LOG2_E)
        if bias is not None:
            place = bias + row * bias_row_stride + slot
            if bias_is_shared:
                added = tl.load(place, mask=is_slot, other=0.0)[None, :]
            else:
                place = place + column[:, None] * bias_column_stride
                added = tl.load(place, mask=is_query[:, None] & is_slot, other=0.0)
            score += added.to(tl.float32) * _LOG2_E
        score = tl.where(is_slot, score, float("-inf"))
        last, peak = peak, tl.maximum(peak, tl.max(score, 1))
        fade = tl.exp2(last - peak)
        weight = tl.exp2(score - peak[:, None])
        total = total * fade + tl.sum(weight, 1)
        v = tl.load(value + slot[:, None] * value_slot_stride + lane, mask=inside, other=0.0)
        summed = summed * fade[:, None]
        summed += tl.dot(weight.to(v.dtype), v, input_precision="ieee")
    place = (tl.program_id(2) * tl.num_programs(0) + pair) * num_queries + number
    tl.store(sums + place, total, mask=is_query)
    tl.store(peaks + place, peak, mask=is_query)
    mixed += place[:, None] * head_dim + lane
    tl.store(mixed, summed, mask=is_query[:, None] & is_lane)


@triton.jit(do_not_specialize=("num_columns", "num_shares"))
@no_type_check
def add_shares(
    mixed, sums, peaks, out, num_columns, num_heads, num_shares,
    head_dim: tl.constexpr, block: tl.constexpr, most_shares: tl.constexpr,
):  # fmt: skip
    """Adds up the shares of one query, each weighted anew by the greatest peak."""
    number = tl.program_id(0).to(tl.int64)
    share = tl.arange(0, most_shares)
    is_share = share < num_shares
    place = share * tl.num_programs(0).to(tl.int64) + number
    peak = tl.load(peaks + place, mask=is_share, other=float("-inf"))
    fade = tl.exp2(peak - tl.max(peak, 0))
    total = tl.sum(tl.load(sums + place, mask=is_share, other=0.0) * fade, 0)
    lane = tl.arange(0, block)
    is_lane = lane < head_dim
    inside = is_share[:, None] & is_lane
    parts = tl.load(mixed + place[:, None] * head_dim + lane, mask=inside, other=0.0)
    summed = tl.sum(parts * fade[:, None], 0) / total
    # From queries by row, head and column to results by row, column and head.
    row, head = number // (num_heads * num_columns), number // num_columns % num_heads
    out += ((row * num_columns + number % num_columns) * num_heads + head) * head_dim
    tl.store(out + lane, summed.to(out.dtype.element_ty), mask=is_lane)
