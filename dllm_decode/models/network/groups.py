"""Columns of several groups of rows as one row, so that a matrix multiplies all of them at once.

Two groups, of two rows of three columns and of one row of two columns, joined:

    a a a
    b b b     ->   a a a b b b c c
    c c
"""

from collections.abc import Sequence
from math import prod

import torch
from jaxtyping import Shaped
from torch import Tensor


def join(groups: Sequence[Shaped[Tensor, "_ _ ..."]]) -> Shaped[Tensor, "_ _ ..."]:
    """Returns the columns of all groups in one row; a single group is returned unchanged."""
    if len(groups) == 1:
        return groups[0]
    return torch.cat([group.flatten(0, 1) for group in groups])[None]


def split(
    joined: Shaped[Tensor, "_ _ ..."], sizes: Sequence[tuple[int, ...]]
) -> list[Shaped[Tensor, "_ _ ..."]]:
    """Undoes `join`; the results are views.

    Args:
        joined: A result of `join`.
        sizes: Rows and columns of each group.
    """
    if len(sizes) == 1:
        return [joined]
    parts = joined[0].split([prod(size) for size in sizes])
    return [part.unflatten(0, size) for part, size in zip(parts, sizes, strict=True)]
