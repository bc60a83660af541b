"""Options as text: fields of dataclasses on command lines, those of `DecodeConfig` elsewhere too.

Nothing heavy is imported, so that help is shown at once.
"""

import argparse
import re
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, Field, fields
from inspect import cleandoc
from math import inf
from types import MappingProxyType, NoneType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from dllm_decode.options import DecodeConfig

OPTIONS: Mapping[str, Any] = {option.name: option.type for option in fields(DecodeConfig)}
"""By field of `DecodeConfig` its type."""

OF_TASK = {"gen_length": "the task's", "block_length": "the task's, else the model's"}
"""Defaults of a command that decodes a task, in words."""

LENGTHS = ("gen_length", "block_length")

FIRST = (
    "model", "sampler", "settings", "cache", "verifier", "blocks", "gen_length", "block_length",
    "batch_size", "device", "dtype",
)  # fmt: skip
"""Options that most users need; help shows them before all groups."""


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


def positive(written: object) -> int:
    """Reads a whole number of at least 1."""
    return whole_between(written, 1)


def number(written: object) -> float:
    """Reads a number."""
    try:
        return float(str(written))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got {written!r}") from None


def above_zero(written: object) -> float:
    """Reads a number above 0."""
    found = number(written)
    if not 0 < found < inf:
        raise argparse.ArgumentTypeError(f"must be above 0, got {found}")
    return found


def task_names(text: str) -> list[str]:
    """Reads names of tasks, joined by commas."""
    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found:
        raise argparse.ArgumentTypeError("must name at least one task")
    return found


def length(text: str) -> int | str:
    """Reads an answer length, or the word "task"."""
    return text if text == "task" else positive(text)


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

_METAVARS: Mapping[Any, str] = {int: "N", float: "N", tuple[int, ...]: "N,..."}


class Group(NamedTuple):
    """Options of a command: fields of a dataclass, whose documentation is their help.

    `Annotated` adds a reader or a metavar to the type of a field. Metadata of a field are further
    keywords of `ArgumentParser.add_argument`, or other "names". A field without a default is
    positional, unless it is "required".

    Attributes:
        title: Title in the help; empty: among the first options.
        names: Fields that are options; empty: all.
        repeat: Options may be repeated to compare several values.
        unset: An option that is not given is None, whatever the default of its field.
        defaults: In words, the defaults that differ from those of the fields.
    """

    kind: type[Any]
    title: str = ""
    names: Collection[str] = ()
    repeat: bool = False
    unset: bool = False
    defaults: Mapping[str, str] = MappingProxyType({})


def decoding(
    title: str = "options of the decode",
    *,
    names: Collection[str] = OPTIONS,
    repeat: bool = False,
    defaults: Mapping[str, str] = OF_TASK,
) -> Group:
    """Returns options of the decode; those that are not given are None."""
    title += ", each may be repeated to compare" * repeat
    return Group(DecodeConfig, title, names, repeat, unset=True, defaults=defaults)


def add_options(parser: ArgumentParser, groups: Iterable[Group]) -> None:
    """Adds options: first those that most users need, then group by group.

    The first of two options with one name is added.
    """
    found: dict[str, tuple[Group, Field[Any], str]] = {}
    for group in groups:
        texts = documented(group.kind)
        for option in fields(group.kind):
            if not group.names or option.name in group.names:
                found.setdefault(option.name, (group, option, texts.get(option.name, "")))
    first = [name for name in FIRST if name in found]
    sections, given = {"": parser.add_argument}, []
    for name in dict.fromkeys([*first, *found]):
        group, option, text = found[name]
        names, keywords = _argument(group, option, text)
        title = "" if name in first or names == [name] else group.title
        if names == [name]:
            given.append(f"[{name}]" if "nargs" in keywords else name)
        elif "required" in keywords:
            given.append(f"{names[0]} {keywords['metavar']}")
        if title not in sections:
            sections[title] = parser.add_argument_group(title).add_argument
        sections[title](*names, **keywords)
    parser.usage = " ".join(["%(prog)s", *given, "[options]"])


def _argument(group: Group, option: Field[Any], text: str) -> tuple[list[str], dict[str, Any]]:
    """Returns the names and the keywords of an argument of argparse."""
    own, default = dict(option.metadata), _default(option)
    names = own.pop("names", [f"--{option.name.replace('_', '-')}"])
    is_given = own.get("nargs") == "?" and "const" not in own
    if is_given or (default is MISSING and "required" not in own):
        names = [option.name]
    else:
        own["dest"] = option.name
    if group.repeat or group.unset:
        own["default"] = None
    elif default is not MISSING:
        own["default"] = default
    own["help"] = _help(group, option, text)
    return names, {**_reading(group, option), **own}


def _default(option: Field[Any]) -> Any:
    """Returns the default of a field, or MISSING."""
    return option.default if option.default_factory is MISSING else option.default_factory()


def _reading(group: Group, option: Field[Any]) -> dict[str, Any]:
    """Returns how the text of an option becomes its value."""
    kind: Any = option.type
    added: Iterable[Any] = ()
    if NoneType in get_args(kind):
        (kind,) = (one for one in get_args(kind) if one is not NoneType)
    if get_origin(kind) is list:
        (kind,) = get_args(kind)
    if get_origin(kind) is Annotated:
        kind, *added = get_args(kind)
    if kind is bool:
        return {"action": BooleanOptionalAction if group.unset else "store_true"}
    found: dict[str, Any] = {"type": READERS.get(kind, str), "metavar": _METAVARS.get(kind)}
    if get_origin(kind) is Literal:
        found = {"choices": get_args(kind)}
    elif option.name in LENGTHS:
        found["type"] = positive
    found |= {"metavar" if isinstance(one, str) else "type": one for one in added}
    return found | {"action": "append"} if group.repeat else found


def _help(group: Group, option: Field[Any], text: str) -> str:
    """Returns the first sentence of the documentation, and the default."""
    default = _default(option)
    words = re.search(r"(?:`None`|Empty): (.*?)\.(?: |$)", text)
    if option.name in group.defaults:
        shown = group.defaults[option.name]
    elif words:
        shown = words[1]
    elif isinstance(default, bool):
        shown = ("no", "yes")[default] if group.unset else ""
    elif default in (MISSING, None, "", (), []):
        shown = ""
    else:
        values = default if isinstance(default, list) else [default]
        shown = " ".join(f"{one:g}" if isinstance(one, float) else str(one) for one in values)
    said = first_sentence(text)
    said += ", repeat to compare" * (group.repeat and option.name in FIRST)
    said += f" (default: {shown})" if shown else ""
    return said.replace("`", "").replace("%", "%%")


def first_sentence(text: str) -> str:
    """Returns the first sentence of a documentation as help: without capital and full stop."""
    said = re.split(r"\.(?: |$)", text)[0]
    return said if said[1:2].isupper() else said[:1].lower() + said[1:]


def documented(kind: type[Any]) -> Mapping[str, str]:
    """Returns by field of a dataclass its documentation, from "Attributes:" in the docstring."""
    written = cleandoc(kind.__doc__ or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    _, *parts = re.split(r"^ {4}(\w+): ", written, flags=re.MULTILINE)
    return {
        name: " ".join(text.split()) for name, text in zip(parts[::2], parts[1::2], strict=True)
    }


def axes_of(options: Namespace) -> dict[str, tuple[Any, ...]]:
    """Returns the values of the options of the decode that were given, for a sweep."""
    given = given_of(options).items()
    return {name: tuple(v) if isinstance(v, list) else (v,) for name, v in given}


def given_of(options: Namespace, names: Iterable[str] = OPTIONS) -> dict[str, Any]:
    """Returns those of the named options of the decode that were given."""
    return {name: v for name in names if (v := getattr(options, name)) is not None}
