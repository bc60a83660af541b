"""Counter-based noise: a pure function of its keys, the same on every device.

Noise is keyed, not streamed, so that the draws of a row depend neither on its batch-mates nor on
how many draws were made before.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from samplers.logits.float64 import has_float64

# Increment and multipliers of SplitMix64 (Steele, Lea and Flood 2014), as signed integers.
_INCREMENT = -7046029254386353131
_MULTIPLIERS = (-4658895280553007687, -7723592293110705685)
_SHIFTS = (30, 27)


def mix(value: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """Scrambles 64-bit integers so that neighbours become unrelated (SplitMix64's finaliser)."""
    value = value + _INCREMENT
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=True):
        value = (value ^ _logical_shift(value, shift)) * multiplier
    return value ^ _logical_shift(value, 31)


def wrap_seed(seed: int) -> int:
    """Wraps a seed to signed 64 bits: after the largest number comes the least."""
    return (seed + 2**63) % 2**64 - 2**63


def row_keys(seed: Int[Tensor, " B"] | int, request: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Derives each row's noise key from its seed, or one seed of all rows, and its request."""
    seeds = seed if isinstance(seed, Tensor) else torch.full_like(request, seed)
    return mix(mix(seeds) ^ request)


def position_keys(
    rows: Int[Tensor, " B"], committed: Int[Tensor, " B"], positions: Int[Tensor, "B W"]
) -> Int[Tensor, "B W"]:
    """Derives each position's key from its row's key and the row's number of committed tokens."""
    return mix(mix(rows ^ committed)[:, None] ^ mix(positions))


def step_keys(rows: Int[Tensor, " B"], step: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Derives a key from each row's key and step, for rules that draw a position repeatedly."""
    return mix(mix(rows) ^ step)


def random_tokens(keys: Int[Tensor, "*shape"], vocab_size: int) -> Int[Tensor, "*shape"]:
    """Draws a token per key, each equally likely up to 2^-44; the same ones on every device."""
    return _logical_shift(mix(keys), 1) % vocab_size


def uniform(keys: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Turns keys into float64 numbers strictly inside (0, 1).

    On a device without float64 they are float32, each within 2^-24 of the float64 number, so that
    sorting gives the same order unless two numbers are closer than that.
    """
    # 52 bits and a half: 53 would round the largest value up to 1, whose Gumbel is infinite.
    num_bits, dtype = (52, torch.float64) if has_float64(keys.device) else (23, torch.float32)
    return (_logical_shift(mix(keys), 64 - num_bits).to(dtype) + 0.5) * 2.0**-num_bits


def gumbel(keys: Int[Tensor, " N"], vocab_size: int) -> Float[Tensor, "N V"]:
    """Draws one standard Gumbel variable per key and entry, in float64 if the device has it."""
    ids = torch.arange(1, vocab_size + 1, device=keys.device)
    return -torch.log(-torch.log(uniform(keys[:, None] + mix(ids))))


def _logical_shift(value: Int[Tensor, "*shape"], bits: int) -> Int[Tensor, "*shape"]:
    """Shifts right and fills with zeros; torch's own shift repeats the sign bit."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)
