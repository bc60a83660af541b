"""Addresses such as `name?option=value`, read as a constructor declares them."""

from argparse import ArgumentTypeError
from collections.abc import Callable, Collection, Mapping
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, Literal, get_origin
from urllib.parse import unquote

from dllm_decode.cli.options import kinds_of, value_of
from samplers.checks import shown

_READABLE = (tuple[str, ...], str, Path, bool, float, int)


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
    never: tuple[type, ...] = (),
) -> Any:
    """Calls a constructor with options that were written as text, and are read as it declares them.

    Messages name the thing that is made, and `others`, options that are read elsewhere. Raises
    ValueError if there is no such option, one lacks, a text is not of the declared type, or an
    option is declared as a type that no text can give.
    """
    # An address must not allow programs to run: the user does, by an option of the command.
    known = {
        key: option
        for key, option in signature(make, eval_str=True).parameters.items()
        if option.annotation not in never
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
    return make(**{key: read(key, text, known[key].annotation) for key, text in options.items()})


def read(name: str, text: object, kind: Any) -> Any:
    """Reads an option as a declared type, or raises ValueError, which names the option."""
    try:
        return value_of(text, kind)
    except ArgumentTypeError as error:
        raise ValueError(f"{name} {error}.") from None


def _require_readable(name: str, key: str, annotation: Any) -> None:
    """Raises ValueError if no text can be read as the type that the constructor declares."""
    if not any(kind in _READABLE or get_origin(kind) is Literal for kind in kinds_of(annotation)):
        declared = "nothing" if annotation is Parameter.empty else f"{annotation!r}"
        raise ValueError(
            f"The option {key} of {name} must be declared as str, int, float, bool, Path, "
            f"tuple[str, ...], a Literal, or one of these and None, got {declared}. "
            "A value that no address gives is a class attribute, or a field with init=False."
        )
