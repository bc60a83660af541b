"""Checks of options and plug-ins' arguments: one sentence for each kind of mistake.

A field declares its range in its annotation. A range is a check, called with the field's name and
value: `threshold: Probability`, `num_steps: Annotated[int, count_from(1, "steps")]`.
"""

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache, partial
from numbers import Integral, Real
from types import NoneType
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

_MOST = 2**63
# Characters of a value that an error message quotes.
_SHOWN_LENGTH = 80
# Sums with a count fit 64 bits.
_MOST_COUNTED = 2**31 - 1


def shown(value: object) -> str:
    """Returns a value's repr for an error message; the middle of a long one is left out."""
    try:
        # Tensors and arrays are written in several lines.
        text = re.sub(r"\n\s*", " ", repr(value))
    except ValueError:
        # Python refuses to write out integers of more than 4,300 digits.
        text = f"<{type(value).__name__} that is too long to print>"
    if len(text) <= _SHOWN_LENGTH:
        return text
    return f"{text[: _SHOWN_LENGTH - 23]}...{text[-20:]}"


def require_unset(plugin: object, name: str, where: str) -> None:
    """Raises ValueError if a field of a dataclass that nothing reads `where` has been set."""
    (field,) = (field for field in fields(plugin) if field.name == name)  # type: ignore[arg-type]
    value = getattr(plugin, name)
    if value != field.default:
        raise ValueError(f"{name} must be left out {where}, where nothing reads it, got {value!r}.")


def require_number(name: str, value: object) -> float:
    """Returns a value that is a number.

    Raises:
        ValueError: If the value is not a number, is NaN, or is True or False.
    """
    if not isinstance(value, Real) or not _is_number(value):
        raise ValueError(f"{name} must be a number, got {shown(value)}.")
    return float(value)


def require_probability(name: str, value: object, *, noun: str = "probability") -> None:
    """Raises ValueError unless a value is a number in [0, 1]; the message says the noun."""
    if not _is_number(value) or not 0.0 <= require_number(name, value) <= 1.0:
        raise ValueError(f"{name} must be a {noun} in [0, 1], got {shown(value)}.")


def require_share(name: str, value: object) -> None:
    """Raises ValueError unless a value is a number in [0, 1]; the message says "share"."""
    require_probability(name, value, noun="share")


def require_non_negative(name: str, value: object, *, unit: str = "a number") -> None:
    """Raises ValueError unless a value is a number of at least 0; infinity is one.

    Args:
        name: The argument.
        value: The argument's value.
        unit: Kind of number, for the message, such as "an entropy in nats".
    """
    if not _is_number(value) or not require_number(name, value) >= 0.0:
        raise ValueError(f"{name} must be {unit} of at least 0, got {shown(value)}.")


def require_finite_non_negative(name: str, value: object) -> None:
    """Raises ValueError unless a value is a finite number of at least 0."""
    # Not math.isfinite, which fails for integers that are too large for a float.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    number: Any = value if is_number else None
    if number is None or not abs(number) <= sys.float_info.max:
        raise ValueError(f"{name} must be a finite number, got {shown(value)}.")
    if number < 0.0:
        raise ValueError(f"{name} must be at least 0, got {shown(value)}.")


def require_positive(name: str, value: object, *, unit: str = "a number") -> None:
    """Raises ValueError unless a value is a finite number above 0.

    Args:
        name: The argument.
        value: The argument's value.
        unit: Kind of number, for the message, such as "an entropy in nats".
    """
    if not _is_number(value) or not 0.0 < require_number(name, value) < float("inf"):
        raise ValueError(f"{name} must be {unit} above 0, got {shown(value)}.")


def require_at_most(name: str, value: object, most: float) -> None:
    """Raises ValueError unless a value is a number that does not exceed a limit."""
    if not _is_number(value) or not require_number(name, value) <= most:
        raise ValueError(f"{name} must be a number of at most {most:g}, got {shown(value)}.")


def require_count(
    name: str, value: object, least: int, *, unit: str = "", optional: bool = False
) -> None:
    """Raises ValueError unless a value is a whole number of at least `least`.

    Args:
        name: The argument.
        value: The argument's value; 2.0 is not a whole number here.
        least: The smallest allowed number.
        unit: The things counted, for the message, such as "tokens".
        optional: True if the value may be `None`.
    """
    if optional and value is None:
        return
    counted = f"a whole number of {unit}" if unit else "a whole number"
    if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < least:
        raise ValueError(f"{name} must be {counted}, at least {least}, got {shown(value)}.")
    if int(value) > _MOST_COUNTED:
        raise ValueError(f"{name} must be {counted}, at most {_MOST_COUNTED}, got {shown(value)}.")


def require_integer(
    name: str, value: object, *, least: int, most: int | None = None, what: str = "an integer"
) -> None:
    """Raises ValueError unless a value is an integer within bounds."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be {what}, got {shown(value)}.")
    if most is None and value < least:
        raise ValueError(f"{name} must be at least {least}, got {shown(value)}.")
    if most is not None and not least <= value <= most:
        raise ValueError(f"{name} must be between {least} and {most}, got {shown(value)}.")


def require_bool(name: str, value: object) -> None:
    """Raises ValueError unless a value is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {shown(value)}.")


def require_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raises ValueError unless a value is one of some texts."""
    if value not in choices:
        listed = ", ".join(f'"{choice}"' for choice in choices)
        raise ValueError(f"{name} must be one of {listed}, got {shown(value)}.")


def require_plugin(name: str, value: object, kind: type, example: str, *, hint: str = "") -> None:
    """Raises ValueError, with an example and a hint, unless a value is an instance of a class."""
    if not isinstance(value, kind):
        got = f"the class {value.__name__}" if isinstance(value, type) else shown(value)
        sentence = f"{name} must be a {kind.__name__} such as {example}, got {got}."
        raise ValueError(f"{sentence} {hint}".rstrip())


def require_tuple(name: str, value: object) -> None:
    """Raises ValueError unless a value is a tuple, which unlike a list never changes."""
    if not isinstance(value, tuple):
        raise ValueError(f"{name} must be a tuple such as (1, 2), got {shown(value)}.")


def require_ids(name: str, value: object) -> None:
    """Raises ValueError unless a value is a tuple of token ids."""
    if not isinstance(value, tuple):
        raise ValueError(f"{name} must be a tuple of token ids, got {shown(value)}.")
    for token in value:
        require_integer(name, token, least=0, what="a tuple of token ids")


Check: TypeAlias = Callable[[str, Any], object]
"""Raises ValueError, with the name, if the value of a field is out of its range."""

Number: TypeAlias = Annotated[float, require_number]
Probability: TypeAlias = Annotated[float, require_probability]
Share: TypeAlias = Annotated[float, require_share]
NonNegative: TypeAlias = Annotated[float, require_non_negative]


def count_from(least: int, unit: str = "") -> Check:
    """Returns the range of whole numbers from `least` on, of the unit that the message names."""
    return partial(require_count, least=least, unit=unit)


def non_negative(unit: str) -> Check:
    """Returns the range of numbers from 0 on, of a unit such as "an entropy in nats"."""
    return partial(require_non_negative, unit=unit)


def positive(unit: str = "a number") -> Check:
    """Returns the range of finite numbers above 0, of a unit such as "a temperature"."""
    return partial(require_positive, unit=unit)


class CheckedFields:
    """A dataclass whose fields must hold what their annotations declare.

    It checks ranges in `Annotated`, `Literal`, `bool`, and classes derived from `CheckedFields`.
    A class with rules over several fields calls `super().__post_init__()` first in its own.
    """

    def __post_init__(self) -> None:
        # A class is hashable, which mypy judges by the hash of its objects.
        for name, check, optional in _checks_of(type(self)):  # type: ignore[arg-type]
            value = getattr(self, name)
            if value is not None or not optional:
                check(name, value)


@cache
def _checks_of(kind: type) -> list[tuple[str, Check, bool]]:
    """Returns the name of each field, its check, and whether it may be `None`."""
    hints = get_type_hints(kind, include_extras=True)
    checks = []
    for field in fields(kind):
        for check, optional in checks_of(hints[field.name], field.default_factory):
            checks.append((field.name, check, optional))
    return checks


def checks_of(hint: Any, default: Any = None) -> Sequence[tuple[Check, bool]]:
    """Returns the checks of an annotation, each with whether the value may be `None`.

    Args:
        hint: The annotation.
        default: Class of the default, an example in messages.
    """
    optional = NoneType in get_args(hint)
    checks = _checks_within(get_args(hint)[0] if optional else hint, default)
    return [(check, optional) for check in checks]


def _checks_within(hint: Any, default: Any) -> Sequence[Check]:
    """Returns the checks that an annotation declares; the class of the default is an example."""
    if get_origin(hint) is Annotated:
        return tuple(hint.__metadata__)
    if get_origin(hint) is Literal:
        return [partial(require_choice, choices=get_args(hint))]
    if hint is bool:
        return [require_bool]
    if isinstance(hint, type) and issubclass(hint, CheckedFields):
        example = f"{getattr(default, '__name__', hint.__name__)}()"
        return [partial(require_plugin, kind=hint, example=example)]
    return []


def _is_number(value: object) -> bool:
    if not isinstance(value, Real) or isinstance(value, bool) or value != value:
        return False
    # An integer that is too large for a float can be neither compared with nor turned into a float.
    return not isinstance(value, Integral) or abs(int(value)) <= _MOST
