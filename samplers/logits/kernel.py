# mypy: disable-error-code="import-not-found, import-untyped, misc"
"""All statistics of each position's logits in one pass, as a Triton kernel.

Importing this module imports Triton; see `samplers.logits.summary`, which does so on CUDA only.
"""

from functools import cache
from subprocess import CalledProcessError
from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from triton.errors import TritonError

from samplers.logits.statistics import Spread, TopK

# Tokens a step of the loop, one lane each: sixteen a thread, whose registers hold their sums.
_NUM_LANES = 4096
_NUM_WARPS = 8


def summarise(logits: Float[Tensor, "B W V"]) -> tuple[TopK, Spread]:
    """Returns the two largest logits, the odds against the first, and the entropy, in float32.

    One program reads each position once, with any strides, and adds up in a fixed order, so that a
    position's results depend neither on the others nor on the run. Among ties the lowest id comes
    first. A NaN makes odds and entropy NaN and is never the largest.

    Args:
        logits: float16, bfloat16 or float32; at least one of each position is finite.
    """
    B, W, V = logits.shape
    values = logits.new_empty((B, W, 2), dtype=torch.float32)
    tokens = logits.new_empty((B, W, 2), dtype=torch.long)
    odds, entropies = values.new_empty(B, W), values.new_empty(B, W)
    if B * W > 0:
        # Triton launches on the current device, which need not be the device of the logits.
        with torch.cuda.device_of(logits):
            _summarise[(B * W,)](
                logits,
                *logits.stride(),
                W,
                V,
                values,
                tokens,
                odds,
                entropies,
                num_lanes=_NUM_LANES,
                num_warps=_NUM_WARPS,
            )
    return TopK(values, tokens), Spread(odds, entropies)


@cache
def runs_on(device: torch.device, dtype: torch.dtype) -> bool:
    """Returns whether the kernel runs: a GPU may be too old, or a C compiler missing."""
    try:
        summarise(torch.zeros(1, 1, 2, device=device, dtype=dtype))
    except (TritonError, RuntimeError, OSError, CalledProcessError):
        return False
    return True


# A kernel of its own for each divisibility of the number of columns would gain nothing.
@triton.jit(do_not_specialize=("num_columns",))
@no_type_check
def _summarise(
    logits,
    row_stride,
    column_stride,
    token_stride,
    num_columns,
    vocab_size,
    top_logits,
    top_tokens,
    odds_against,
    entropies,
    num_lanes: tl.constexpr,
):
    # In 64 bits: a batch of long windows has more than 2^31 logits.
    position = tl.program_id(0).to(tl.int64)
    logits += position // num_columns * row_stride + position % num_columns * column_stride
    best, best_id, second, second_id, others, moment = _by_lane(
        logits, token_stride, vocab_size, num_lanes
    )
    top = tl.max(best, 0)
    token = tl.min(tl.where(best == top, best_id, vocab_size), 0)
    # The winner's lane enters its second, the others their first.
    rest = tl.where(best_id == token, second, best)
    rest_id = tl.where(best_id == token, second_id, best_id)
    runner_up = tl.max(rest, 0)
    runner_up_token = tl.min(tl.where(rest == runner_up, rest_id, vocab_size), 0)
    gap = _finite(best - top)
    share = tl.exp(gap)
    # Without the 1 of the winner, which would swallow the shares of the other tokens.
    odds = tl.sum(tl.where(best_id == token, others, share * (others + 1.0)), 0)
    surplus = tl.sum(share * (moment + (others + 1.0) * gap), 0)
    tl.store(top_logits + 2 * position, top)
    tl.store(top_logits + 2 * position + 1, runner_up)
    tl.store(top_tokens + 2 * position, token.to(tl.int64))
    tl.store(top_tokens + 2 * position + 1, runner_up_token.to(tl.int64))
    tl.store(odds_against + position, odds)
    tl.store(entropies + position, tl.log(1.0 + odds) - surplus / (1.0 + odds))


@triton.jit
@no_type_check
def _by_lane(logits, token_stride, vocab_size, num_lanes: tl.constexpr):
    # Each lane strides through the vocabulary on its own, and they meet at the end: a reduction at
    # every step would cost more than the arithmetic. `others` is a lane's sum of exp(x - best)
    # without the best's own 1, `moment` that of (x - best) exp(x - best), rescaled whenever `best`
    # grows.
    lane = tl.arange(0, num_lanes)
    best = tl.full((num_lanes,), -float("inf"), tl.float32)
    second = tl.full((num_lanes,), -float("inf"), tl.float32)
    best_id = lane
    second_id = lane + num_lanes
    others = tl.zeros((num_lanes,), tl.float32)
    moment = tl.zeros((num_lanes,), tl.float32)
    for start in range(0, vocab_size, num_lanes):
        ids = start + lane
        places = logits + ids.to(tl.int64) * token_stride
        x = tl.load(places, mask=ids < vocab_size, other=-float("inf")).to(tl.float32)
        higher = x > best
        gap = _finite(tl.where(higher, best - x, x - best))
        # A NaN must reach the sums.
        share = tl.where(x == x, tl.exp(gap), x)
        grown = share * (moment + (others + 1.0) * gap)
        moment = tl.where(higher, grown, moment + share * gap)
        others = tl.where(higher, share * (others + 1.0), others + share)
        # Strictly greater, so that the lowest id of ties stays.
        is_next = x > second
        second_id = tl.where(higher, best_id, tl.where(is_next, ids, second_id))
        second = tl.where(higher, best, tl.where(is_next, x, second))
        best_id = tl.where(higher, ids, best_id)
        best = tl.where(higher, x, best)
    return best, best_id, second, second_id, others, moment


@triton.jit
@no_type_check
def _finite(gap):
    # exp(-200) is 0 in float32, as is 0 times -200. Excluded tokens, whose gap is -inf or the NaN
    # of -inf less -inf, therefore count as nothing.
    return tl.where(gap > -200.0, gap, -200.0)
