"""Sets of columns of one row, as ascending ranges that the host can compute with."""

from collections.abc import Iterable
from typing import TypeAlias

Columns: TypeAlias = tuple[range, ...]
"""Columns of one row: ranges in ascending order that do not overlap, each with at least one column.

A column is a place of the row, counted from its own first token. It is at the same time the rotary
position of the token and its slot in the key-value cache, and never changes while the row lives.
"""


def columns(*bounds: tuple[int, int]) -> Columns:
    """Returns the columns between some bounds, which must ascend; empty ranges are left out."""
    return tuple(range(start, stop) for start, stop in bounds if start < stop)


def are_columns(value: object, end: int) -> bool:
    """Returns whether a value is a non-empty set of columns before `end`."""
    if not isinstance(value, tuple) or not value:
        return False
    previous = 0
    for part in value:
        if not isinstance(part, range) or not previous <= part.start < part.stop <= end:
            return False
        previous = part.stop
    return True


def _is_within_one_range(part: Columns, whole: Columns) -> bool:
    """Returns whether the first set is empty, or inside the second and the second is one range."""
    if not part:
        return True
    return len(whole) == 1 and whole[0].start <= part[0].start and part[-1].stop <= whole[0].stop


def union(one: Columns, other: Columns) -> Columns:
    """Returns the columns that are in either set; neighbouring ranges become one."""
    if _is_within_one_range(other, one):
        return one
    merged: list[range] = []
    for part in sorted((*one, *other), key=lambda part: part.start):
        if merged and part.start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(merged[-1].stop, part.stop))
        else:
            merged.append(part)
    return tuple(merged)


def without(one: Columns, other: Columns) -> Columns:
    """Returns the columns of the first set that are not in the second."""
    if _is_within_one_range(one, other):
        return ()
    left = one
    for removed in other:
        bounds = [
            bound
            for part in left
            for bound in (
                (part.start, min(part.stop, removed.start)),
                (max(part.start, removed.stop), part.stop),
            )
        ]
        left = columns(*bounds)
    return left


def in_whole_blocks(parts: Columns, length: int) -> Columns:
    """Returns all columns of those blocks, of `length` columns each, that have one of these."""
    whole: Columns = ()
    for part in parts:
        start, stop = part.start // length * length, -(-part.stop // length) * length
        whole = union(whole, (range(start, stop),))
    return whole


def num_columns(parts: Iterable[range]) -> int:
    """Returns the number of columns."""
    return sum(len(part) for part in parts)


def ranges_of(ascending: Iterable[int]) -> Columns:
    """Returns single columns, which must ascend, as ranges."""
    ranges: list[range] = []
    for column in ascending:
        if ranges and ranges[-1].stop == column:
            ranges[-1] = range(ranges[-1].start, column + 1)
        else:
            ranges.append(range(column, column + 1))
    return tuple(ranges)
