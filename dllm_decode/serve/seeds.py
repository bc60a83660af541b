"""Seeds that give a row the noise of another index.

The noise of a row depends on its seed and its index. A server needs an index of its own for every
row, but the same request must draw the same noise whenever it comes. `seed_for` solves
row_keys(seed', index) = row_keys(seed, number) for seed'.
"""

_BITS = 64
_SIZE = 1 << _BITS
# SplitMix64, as in `samplers.logits.noise.mix`.
_INCREMENT = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)


def seed_for(seed: int, number: int, index: int) -> int:
    """Returns the seed that gives the row of an index the noise of prompt `number` of a decode.

    Args:
        seed: Seed of that decode, in signed 64 bits.
        number: Index that the prompt has there.
        index: Index of the row.
    """
    found = _unmix(_mix(seed % _SIZE) ^ number ^ index)
    return found - _SIZE if found >= _SIZE // 2 else found


def _mix(value: int) -> int:
    value = (value + _INCREMENT) % _SIZE
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=False):
        value = (value ^ (value >> shift)) * multiplier % _SIZE
    return value ^ (value >> _SHIFTS[2])


def _unmix(value: int) -> int:
    value = _unshift(value, _SHIFTS[2])
    for shift, multiplier in zip(_SHIFTS[1::-1], _MULTIPLIERS[::-1], strict=True):
        value = _unshift(value * pow(multiplier, -1, _SIZE) % _SIZE, shift)
    return (value - _INCREMENT) % _SIZE


def _unshift(value: int, shift: int) -> int:
    """Returns the x of x ^ (x >> shift) = value."""
    found = value
    for _ in range(_BITS // shift):
        found = value ^ (found >> shift)
    return found
