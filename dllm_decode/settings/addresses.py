"""Reads addresses such as "name?option=value", as models and the tasks of `eval` are named.

Options are read as a constructor declares them. Nothing heavy is imported.
"""

from argparse import ArgumentTypeError
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, Literal, get_origin
from urllib.parse import unquote

from dllm_decode.settings.options import kinds_of, value_of
from samplers.checks import shown

_EXAMPLE = "path/to/open-dcoder?family=open_dllm&mask_id=151665"
_READABLE = (tuple[str, ...], str, Path, bool, float, int)


@dataclass(frozen=True)
class ModelAddress:
    """A model, and the facts that its files do not state.

    `source` is an embedded name, folder or hub id; the other fields are as in `load_model`.
    """

    source: str
    family: str | None = None
    mask_id: int | None = None
    block_length: int | None = None
    adapter: str | None = None
    quantize: str | None = None


def parse_model(address: str) -> ModelAddress:
    """Reads an address such as `path/to/open-dcoder?family=open_dllm&mask_id=151665`.

    Raises ValueError if it has an option that a model does not have.
    """
    # A folder may have a question mark in its name.
    if "?" not in address or Path(address).is_dir():
        return ModelAddress(address)
    source, options = split_address(address, _EXAMPLE)
    parsed: ModelAddress = construct("A model", partial(ModelAddress, source), options)
    return parsed


def split_address(address: str, example: str) -> tuple[str, dict[str, str]]:
    """Returns the name of an address, and its options in the order of their names.

    Raises ValueError, with an example, if an option is not written as name=value, or comes twice.
    """
    name, _, query = address.strip().partition("?")
    pairs = [pair.partition("=") for pair in query.split("&") if pair]
    if any(not equals for _, equals, _ in pairs):
        raise ValueError(
            f"Options must be written name=value and joined by &, got {shown(address)}; "
            f"an address is such as {example!r}."
        )
    # %26 is read as an ampersand, as in a URL. A plus sign stays, because paths have it.
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
    """Calls a constructor with options, which are read from text by the types that it declares.

    Messages contain `name`, the thing that is made, and `others`, options that are read elsewhere.
    Raises ValueError if an option is unknown or missing, a text is not of the declared type, or an
    option has a type that cannot be read from text.
    """
    declared = signature(make, eval_str=True).parameters
    for key in options:
        if key not in declared:
            names = ", ".join([*others, *declared])
            raise ValueError(f"{name} has the options {names}, got {shown(key)}.")
    for key, option in declared.items():
        _require_readable(name, key, option.annotation)
        if option.default is Parameter.empty and key not in options:
            raise ValueError(
                f"{name} must be given the option {key}, got {', '.join(options) or 'none'}; "
                f"write {name}?{key}=..."
            )
    return make(
        **{key: read_option(key, text, declared[key].annotation) for key, text in options.items()}
    )


def read_option(name: str, text: object, kind: Any) -> Any:
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
