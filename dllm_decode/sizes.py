"""Sizes in steps: libraries keep scratch, and graphs are recorded, for each size there is."""


def round_up(count: int, step: int) -> int:
    """Returns the least multiple of a step that is not below a count."""
    return -(-count // step) * step
