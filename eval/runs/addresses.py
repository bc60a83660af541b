"""Addresses of tasks and models: a name, and after a question mark `limit=200&n=6`."""

import types
from collections.abc import Callable, Collection, Mapping
from functools import reduce
from inspect import Parameter, signature
from operator import or_
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin
from urllib.parse import unquote

import msgspec

from eval.sandbox.code_runner import CodeRunner
from samplers.checks import shown


def split_address(address: str, example: str) -> tuple[str, dict[str, str]]:
    """Returns the name of an address, and its options in the order of their names.

    Raises ValueError, with an example, if an option is not written as name=value, or comes twice.
    """
    name, _, query = address.strip().partition("?")
    pairs = [one.partition("=") for one in query.split("&") if one]
    if any(not equals for _, equals, _ in pairs):
        raise ValueError(
            f"Options must be written name=value and joined by &, got {shown(address)}; "
            f"an address is such as {example!r}."
        )
    # %26 is read as an ampersand, as in a URL. A plus sign stays one: paths have it.
    options = dict(sorted((key, unquote(text)) for key, _, text in pairs))
    if len(options) < len(pairs):
        raise ValueError(f"An address must give each option once, got {shown(address)}.")
    return name, options


def construct(
    name: str,
    make: Callable[..., Any],
    options: Mapping[str, str],
    *,
    others: Collection[str] = (),
) -> Any:
    """Calls a constructor with options that were written as text.

    Args:
        name: Name of the thing that is made, for messages.
        make: The constructor; the types that it declares say how a text is read.
        options: The texts.
        others: Options that are read elsewhere, for messages.

    Raises:
        ValueError: If there is no such option, one lacks, a text is not of the declared type, or
            an option is declared as a type that no text can give.
    """
    # An address must not allow programs to run: the user does, by an option of the command.
    known = {
        key: option
        for key, option in signature(make, eval_str=True).parameters.items()
        if option.annotation is not CodeRunner
    }
    for key in options:
        if key not in known:
            listed = ", ".join([*others, *known])
            raise ValueError(f"{name} has the options {listed}, got {shown(key)}.")
    for key, option in known.items():
        _require_readable(name, key, option.annotation)
        if option.default is Parameter.empty and key not in options:
            raise ValueError(
                f"{name} must be given the option {key}, got {', '.join(options) or 'none'}; "
                f"write {name}?{key}=..."
            )
    return make(**{key: _value(key, text, known[key].annotation) for key, text in options.items()})


def whole_number(name: str, text: str) -> int:
    """Reads an integer from 0 on, or raises ValueError if the text is none."""
    if not text.isascii() or not text.isdecimal():
        raise ValueError(f"{name} must be a whole number, got {shown(text)}.")
    return int(text)


def _require_readable(name: str, key: str, annotation: Any) -> None:
    """Raises ValueError if no text can be read as the type that the constructor declares."""
    if not any(kind in _READABLE or get_origin(kind) is Literal for kind in _kinds(annotation)):
        declared = "nothing" if annotation is Parameter.empty else f"{annotation!r}"
        raise ValueError(
            f"The option {key} of {name} must be declared as str, int, float, bool, Path, "
            f"tuple[str, ...], a Literal, or one of these and None, got {declared}. "
            "A value that no address gives is a class attribute, or a field with init=False."
        )


def _value(name: str, text: str, annotation: Any) -> object:
    """Reads an option as the type that the constructor declares for it."""
    kinds = _kinds(annotation)
    if type(None) in kinds and text == "None" and str not in kinds:
        return None
    if tuple[str, ...] in kinds:
        return tuple(text.split(","))
    if Path in kinds and str not in kinds:
        return Path(text)
    try:
        # Without None, which is written as null there.
        own: Any = reduce(or_, (kind for kind in kinds if kind is not type(None)))
        return msgspec.convert(text, own, strict=False)
    except msgspec.ValidationError:
        literals = [str(one) for kind in kinds for one in get_args(kind)]
        wanted = f"one of {', '.join(literals)}" if literals else _WORDS[kinds[0]]
        raise ValueError(f"{name} must be {wanted}, got {shown(text)}.") from None


def _kinds(annotation: Any) -> tuple[Any, ...]:
    """Returns the types of a union; another type is returned alone."""
    is_union = get_origin(annotation) in (Union, types.UnionType)
    return get_args(annotation) if is_union else (annotation,)


_READABLE = (tuple[str, ...], str, Path, bool, float, int)
_WORDS = {bool: "true or false", int: "a whole number", float: "a number"}
