"""Rounds sizes up, because libraries keep scratch memory, and graphs are recorded, for each."""


def round_up(count: int, step: int) -> int:
    """Returns the least multiple of a step that is not below a count."""
    return -(-count // step) * step
