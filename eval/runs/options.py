"""The options of `DecodeConfig` as text: on command lines, in sweep files, for the harness.

Nothing heavy is imported, so that help is shown at once.
"""

import argparse
from argparse import ArgumentParser, Namespace, _ArgumentGroup
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, TypeAlias, get_args

from dllm_decode.options import DecodeConfig

Parser: TypeAlias = ArgumentParser | _ArgumentGroup
Reader: TypeAlias = Callable[[str], Any]

OPTIONS: Mapping[str, Any] = {option.name: option.type for option in fields(DecodeConfig)}
"""By field of `DecodeConfig` its type."""

OF_TASK = {"gen_length": "the task's", "block_length": "the task's, else the model's"}
"""Defaults of a command that decodes a task, in words."""

_HELP = {option.name: option.metadata["help"] for option in fields(DecodeConfig)}


def whole(written: object) -> int:
    """Reads a whole number."""
    try:
        return int(str(written))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, got {written!r}") from None


def whole_between(written: object, least: int, most: int = 2**31 - 1) -> int:
    """Reads a whole number within limits."""
    number = whole(written)
    if number < least:
        raise argparse.ArgumentTypeError(f"must be at least {least}, got {number}")
    if number > most:
        raise argparse.ArgumentTypeError(f"must be at most {most}, got {number}")
    return number


def count(written: object) -> int:
    """Reads a whole number of at least 0."""
    return whole_between(written, 0)


def positive(written: object) -> int:
    """Reads a whole number of at least 1."""
    return whole_between(written, 1)


def num_threads(written: object) -> int:
    """Reads a number of threads; OpenMP ends the process where memory lacks for more."""
    return whole_between(written, 1, 1024)


def number(written: object) -> float:
    """Reads a number."""
    try:
        return float(str(written))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got {written!r}") from None


def truth(written: object) -> bool:
    """Reads true or false."""
    if str(written).lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"must be true or false, got {written!r}")
    return str(written).lower() == "true"


def ids(written: object) -> tuple[int, ...]:
    """Reads token ids, joined by commas."""
    return tuple(whole(one) for one in str(written).strip("()[]").split(",") if one.strip())


READERS: Mapping[Any, Callable[[object], Any]] = {
    bool: truth, int: whole, int | None: whole, float: number, tuple[int, ...]: ids,
}  # fmt: skip
"""By type of an option how its text is read; all others are texts."""

_LENGTHS: Mapping[str, Reader] = {"gen_length": positive, "block_length": positive}


def add_decoding(
    parser: ArgumentParser,
    *,
    repeat: bool = False,
    defaults: Mapping[str, str] = OF_TASK,
    readers: Mapping[str, Reader] = MappingProxyType({}),
) -> None:
    """Adds all options of the decode, in a group of their own.

    Args:
        parser: Gets the options.
        repeat: They may be repeated to compare several values.
        defaults: In words, the defaults that differ from those of `DecodeConfig`.
        readers: How this command reads the text of some options.
    """
    title = "options of the decode" + (", each may be repeated to compare" if repeat else "")
    group = parser.add_argument_group(title)
    add_options(group, OPTIONS, repeat=repeat, defaults=defaults, readers=readers)


def add_options(
    parser: Parser,
    names: Iterable[str],
    *,
    repeat: bool = False,
    defaults: Mapping[str, str] = OF_TASK,
    readers: Mapping[str, Reader] = MappingProxyType({}),
) -> None:
    """Adds these options of the decode; see `add_decoding`."""
    for name in names:
        written, kind, text = f"--{name.replace('_', '-')}", OPTIONS[name], _HELP[name]
        if name in defaults:
            text = f"{text.partition(' (default: ')[0]} (default: {defaults[name]})"
        if kind is bool:
            parser.add_argument(written, action=argparse.BooleanOptionalAction, help=text)
            continue
        # A type without a reader is a Literal.
        choices = None if kind in READERS else get_args(kind)
        parser.add_argument(
            written,
            type={**_LENGTHS, **readers}.get(name, READERS.get(kind, str)),
            choices=choices,
            action="append" if repeat else "store",
            metavar=None if choices else "N",
            help=text,
        )


def axes_of(options: Namespace) -> dict[str, tuple[Any, ...]]:
    """Returns the values of the options of the decode that were given, for a sweep."""
    return {
        name: tuple(value) if isinstance(value, list) else (value,)
        for name, value in given_of(options).items()
    }


def given_of(options: Namespace, names: Iterable[str] = OPTIONS) -> dict[str, Any]:
    """Returns those of the named options of the decode that were given."""
    given = {name: getattr(options, name) for name in names}
    return {name: value for name, value in given.items() if value is not None}
