"""Integers and decimal numbers between two bounds as regular expressions."""

from typing import NamedTuple


def integers_between(least: int | None, most: int | None) -> str:
    """Returns an expression of the integers from `least` to `most`, without leading zeros."""
    parts = []
    if least is None or least < 0:
        smallest = 1 if most is None or most >= 0 else -most
        if least is None or -least >= smallest:
            sizes = _naturals(smallest, None if least is None else -least)
            parts.append(f"-{sizes}")
    if most is None or most >= 0:
        parts.append(_naturals(max(0, least or 0), most))
    return f"(?:{'|'.join(parts)})"


class Bound(NamedTuple):
    """An end of a range of numbers.

    Attributes:
        value: An integer.
        is_open: True if the value itself is outside.
    """

    value: int
    is_open: bool = False


def decimals_between(least: Bound | None, most: Bound | None) -> str:
    """Returns an expression of the decimal numbers between two ends, without exponents."""
    parts = []
    if least is None or least.value < 0:
        smallest = Bound(0, is_open=True)
        if most is not None and most.value <= 0:
            smallest = Bound(-most.value, most.is_open or most.value == 0)
        largest = None if least is None else Bound(-least.value, least.is_open)
        parts.append(f"-{_magnitudes(smallest, largest)}")
    if most is None or most.value > 0 or (most.value == 0 and not most.is_open):
        smallest = least if least is not None and least.value >= 0 else Bound(0)
        parts.append(_magnitudes(smallest, most))
    return f"(?:{'|'.join(parts)})"


def _magnitudes(least: Bound, most: Bound | None) -> str:
    """Returns an expression of the decimal numbers between two bounds that are at least 0."""
    first, parts = least.value, []
    if most is not None and first == most.value:
        return rf"{first}(?:\.0+)?"
    if least.is_open:
        parts.append(rf"{first}\.0*[1-9][0-9]*")
        first += 1
    if most is None or first < most.value:
        integers = _naturals(first, None if most is None else most.value - 1)
        parts.append(rf"{integers}(?:\.[0-9]+)?")
    if most is not None and not most.is_open:
        parts.append(rf"{most.value}(?:\.0+)?")
    return f"(?:{'|'.join(parts)})"


def _naturals(least: int, most: int | None) -> str:
    """Returns an expression of the integers from `least`, at least 0, to `most`."""
    num_digits = len(str(least if most is None else most))
    parts = []
    for length in range(len(str(least)), num_digits + 1):
        first = max(least, 10 ** (length - 1) if length > 1 else 0)
        last = 10**length - 1 if most is None else min(most, 10**length - 1)
        parts += _of_one_length(str(first), str(last))
    if most is None:
        parts.append(f"[1-9][0-9]{{{num_digits},}}")
    return f"(?:{'|'.join(parts)})"


def _of_one_length(first: str, last: str) -> list[str]:
    """Returns expressions of the numbers from `first` to `last`, which have equally many digits."""
    if first == last:
        return [first]
    rest = len(first) - 1
    if first[0] == last[0]:
        return [first[0] + part for part in _of_one_length(first[1:], last[1:])]
    low, high = int(first[0]), int(last[0])
    below, above = [], []
    # First digits after which all other digits are free become one class.
    if first[1:] != "0" * rest:
        below = [first[0] + part for part in _of_one_length(first[1:], "9" * rest)]
        low += 1
    if last[1:] != "9" * rest:
        above = [last[0] + part for part in _of_one_length("0" * rest, last[1:])]
        high -= 1
    free = [f"[{low}-{high}]" + (f"[0-9]{{{rest}}}" if rest else "")] if low <= high else []
    return [*below, *free, *above]
