"""Sets of numbers, as the languages of their decimal texts without an exponent."""

from decimal import Decimal
from typing import Any

import numpy as np

from dllm_decode.text.constraints.machines.ecma import full_match
from dllm_decode.text.constraints.machines.languages import Language
from dllm_decode.text.constraints.machines.limits import once

NUMBERS = full_match(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
"""All numbers."""

INTEGERS = full_match(r"-?(0|[1-9][0-9]*)(\.0+)?")
"""The numbers without a fraction."""

# States that remainders of a `multipleOf` may have.
_MAX_REMAINDERS = 4_000
_WITHOUT_POINT = full_match("-?(0|[1-9][0-9]*)")
_WITH_EXPONENT = full_match(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?")
# A double has this many digits without rounding.
_SHORT = full_match(
    "-?("
    + "|".join([f"[0-9]{{{size}}}[.][0-9]{{1,{15 - size}}}" for size in range(1, 15)])
    + "|[0-9]{1,15})"
)
_MAX_DIGITS = 60


def is_bound(value: float) -> bool:
    """Returns whether a number has few enough digits for an automaton to compare others with it."""
    return len(format(Decimal(repr(value)), "f")) <= _MAX_DIGITS


def is_step(value: float) -> bool:
    """Returns whether an automaton can follow the remainders of a division by a number."""
    base, num_places = _as_fraction(Decimal(repr(value)))
    return 0 < base * (num_places + 1) <= _MAX_REMAINDERS


def numbers_of(part: dict[str, Any]) -> tuple[Language, bool]:
    """Returns the numbers that the keywords of a part allow, and whether equality matters."""
    numbers, is_exact = NUMBERS, False
    for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        bound = part.get(keyword)
        if bound is None or isinstance(bound, bool):
            continue
        # In draft 4 a boolean makes the other keyword's bound open.
        exclusive = "exclusive" + keyword.capitalize()
        is_open = keyword not in ("minimum", "maximum") or part.get(exclusive) is True
        limit = at_least if keyword.endswith("inimum") else at_most
        numbers &= limit(Decimal(repr(bound)), is_open=is_open)
        is_exact |= is_open
    if "multipleOf" in part:
        numbers &= multiples_of(Decimal(repr(part["multipleOf"])))
    return numbers, is_exact or "multipleOf" in part


@once
def at_least(bound: Decimal, *, is_open: bool) -> Language:
    """Returns the numbers from a bound on; without the bound itself if it is open."""
    greater, equal = _compared(abs(bound))
    if bound > 0 or (bound == 0 and is_open):
        return full_match(greater if is_open else f"{greater}|{equal}")
    # The sign turns the order around.
    less = f"{greater}|{equal}" if is_open else greater
    return NUMBERS - full_match(f"-({less})")


def at_most(bound: Decimal, *, is_open: bool) -> Language:
    """Returns the numbers up to a bound; without the bound itself if it is open."""
    return NUMBERS - at_least(bound, is_open=not is_open)


def equal_to(value: Decimal) -> Language:
    """Returns the texts of one number."""
    return at_least(value, is_open=False) - at_least(value, is_open=True)


def written_numbers(numbers: Language, *, is_exact: bool) -> Language:
    """Returns the texts of numbers that are written.

    Integers have no fraction, and numbers without a bound may have an exponent. If it matters
    whether a number is equal to a bound, it has no more digits than a double keeps.
    """
    if numbers == NUMBERS:
        return _WITH_EXPONENT
    if (numbers - INTEGERS).is_empty:
        return numbers & _WITHOUT_POINT
    return numbers & _SHORT if is_exact else numbers


def _compared(bound: Decimal) -> tuple[str, str]:
    """Returns expressions of the numbers that are greater than a bound, and of those equal to it.

    None of them has a sign.
    """
    whole, _, fraction = format(bound, "f").partition(".")
    fraction, whole = fraction.rstrip("0"), whole.lstrip("0") or "0"
    size, rest = len(whole), r"(\.[0-9]+)?"
    greater = [rf"[1-9][0-9]{{{size},}}{rest}", rf"{whole}\.{fraction}[0-9]*[1-9][0-9]*"]
    for place, digit in enumerate(whole):
        if digit != "9":
            higher = f"{whole[:place]}[{int(digit) + 1}-9]"
            greater.append(f"{higher}[0-9]{{{size - place - 1}}}{rest}")
    for place, digit in enumerate(fraction):
        if digit != "9":
            greater.append(rf"{whole}\.{fraction[:place]}[{int(digit) + 1}-9][0-9]*")
    return "|".join(greater), rf"{whole}\.{fraction}0*" if fraction else rf"{whole}(\.0+)?"


def multiples_of(step: Decimal) -> Language:
    """Returns the numbers that are a multiple of a positive number."""
    base, num_places = _as_fraction(step)
    # State `place * base + remainder`: place 0 is before the point, place n after n - 1 digits.
    place, remainder = np.divmod(np.arange((num_places + 2) * base), base)
    digits = (remainder[:, None] * 10 + np.arange(10)) % base
    next_place = np.where(place == 0, 0, place + 1)[:, None]
    targets = np.where(next_place <= num_places + 1, next_place * base + digits, -1)
    # After the last place only zeros follow.
    targets[:, 0] = np.where(place == num_places + 1, np.arange(len(place)), targets[:, 0])
    dead = np.full_like(place, -1)
    sign = np.where(place + remainder == 0, 0, -1)
    point = np.where(place == 0, base + remainder, -1)
    table = np.column_stack([dead, sign, point, dead, targets, dead])
    num_missing = num_places - np.maximum(place - 1, 0)
    accepting = remainder * 10**num_missing % base == 0
    cuts = np.array([0, *map(ord, "-./0123456789:")])
    return NUMBERS & Language(cuts, table, accepting)


def _as_fraction(step: Decimal) -> tuple[int, int]:
    """Returns a number as an integer, and the digits of it that are after the point."""
    num_places = max(0, -int(step.normalize().as_tuple().exponent))
    return int(step.scaleb(num_places)), num_places
