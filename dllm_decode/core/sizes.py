"""Rounds sizes up: for each size, libraries keep scratch memory and graphs are recorded."""

COLUMN_STRIDE = 16
"""Numbers of columns are rounded up to a multiple of this."""


def round_up(count: int, step: int) -> int:
    """Returns the least multiple of `step` that is at least `count`."""
    return -(-count // step) * step
