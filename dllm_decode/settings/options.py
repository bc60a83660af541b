"""Makes fields of dataclasses options of command lines, and reads their values from text.

Nothing heavy is imported, so that help is shown at once.
"""

import re
from argparse import ArgumentParser, ArgumentTypeError, BooleanOptionalAction, Namespace
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, fields
from difflib import get_close_matches
from functools import partial, reduce
from inspect import cleandoc, getdoc
from operator import or_
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import msgspec

from dllm_decode.core.options import DecodeConfig

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


_METAVARS: Mapping[Any, str] = {int: "N", float: "N", tuple[int, ...]: "N,..."}
_WORDS: Mapping[Any, str] = {
    bool: "true or false", int: "a whole number", float: "a number",
    tuple[int, ...]: "whole numbers with commas between them",
}  # fmt: skip
_BOUNDS = {">=": "at least", "<=": "at most", ">": "above"}


def value_of(written: object, kind: Any) -> Any:
    """Reads a text as a declared type, such as `int | None`; commas separate the entries of tuples.

    Raises ArgumentTypeError, which names what is valid, if the text is not of the type.
    """
    kinds, value = [_bare_type(member) for member in kinds_of(kind)], written
    if NoneType in kinds and written == "None" and str not in kinds:
        return None
    if isinstance(written, str) and tuple[int, ...] in kinds:
        # A tuple of one number is written with a comma at its end.
        listed = written.strip("()[] ").removesuffix(",")
        value = [part.strip() for part in listed.split(",")] if listed else []
    elif isinstance(written, str) and tuple[str, ...] in kinds:
        value = written.split(",")
    elif isinstance(written, str) and float in kinds:
        # Python writes numbers as .5 or 1. too, which JSON does not allow.
        with suppress(ValueError):
            value = float(written)
    # None is left out, because msgspec would read it from the text "null".
    target: Any = reduce(or_, (member for member in kinds_of(kind) if member is not NoneType))
    try:
        return msgspec.convert(value, target, strict=False, dec_hook=lambda kind, text: kind(text))
    except msgspec.ValidationError as error:
        bound = re.search(r"(>=|<=|>) (\S+)$", str(error))
        if bound:
            limit = f"{_BOUNDS[bound[1]]} {bound[2].removesuffix('.0')}"
            raise ArgumentTypeError(f"must be {limit}, got {written}") from None
        texts = [str(text) for t in kinds for text in get_args(t) if get_origin(t) is Literal]
        expected = [_WORDS[member] for member in kinds if member in _WORDS]
        expected += [f"one of {', '.join(texts)}"] if texts else []
        raise ArgumentTypeError(f"must be {' or '.join(expected)}, got {written!r}") from None


def kinds_of(kind: Any) -> tuple[Any, ...]:
    """Returns the types of a union, or the type alone if it is no union."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _bare_type(kind: Any) -> Any:
    """Returns a type without its annotations."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


class OptionGroup(NamedTuple):
    """A group of options of a command: fields of a dataclass, whose documentation is their help.

    `Annotated` adds limits or a metavar to the type of a field. Metadata of a field are further
    keywords of `ArgumentParser.add_argument`, or other "names". Each use of an option
    adds one value to a list without "nargs". A field without a default is positional, unless it is
    "required".

    Attributes:
        title: Title in the help; empty: among the first options.
        names: Fields that are options; empty: all.
        repeat: Options may be repeated to compare several values.
        unset: An option that is not given is None, even if its field has another default.
        defaults: Defaults in words, where they differ from the defaults of the fields.
    """

    kind: type[Any]
    title: str = ""
    names: Collection[str] = ()
    repeat: bool = False
    unset: bool = False
    defaults: Mapping[str, str] = MappingProxyType({})


def decode_options(
    title: str = "options of the decode",
    *,
    names: Collection[str] = OPTIONS,
    repeat: bool = False,
    defaults: Mapping[str, str] = OF_TASK,
) -> OptionGroup:
    """Returns the group of options of the decode; those that are not given are None."""
    title += ", each may be repeated to compare" * repeat
    return OptionGroup(DecodeConfig, title, names, repeat, unset=True, defaults=defaults)


class OptionParser(ArgumentParser):
    """A parser that names the closest option if one is mistyped."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            valid = list(self._option_string_actions)
            names = [word.partition("=")[0] for word in unknown if word.startswith("--")]
            close = [match for name in names for match in get_close_matches(name, valid, n=1)]
            hint = f"; did you mean {' and '.join(close)}?" if close else ""
            # A mistyped option's value was taken for the question, so the question is unknown too.
            self.error(f"unrecognized arguments: {' '.join(names or unknown)}{hint}")
        return options, unknown


def add_options(parser: ArgumentParser, groups: Iterable[OptionGroup]) -> None:
    """Adds options: first those that most users need, then group by group.

    If two options have the same name, only the first is added.
    """
    chosen: dict[str, tuple[OptionGroup, Field[Any]]] = {}
    for group in groups:
        for option in fields(group.kind):
            if not group.names or option.name in group.names:
                chosen.setdefault(option.name, (group, option))
    first = [name for name in FIRST if name in chosen]
    sections, usage = {"": parser.add_argument}, []
    for name in dict.fromkeys([*first, *chosen]):
        group, option = chosen[name]
        names, keywords = _argument(group, option)
        title = "" if name in first or names == [name] else group.title
        if names == [name]:
            usage.append(f"[{name}]" if "nargs" in keywords else name)
        elif "required" in keywords:
            usage.append(f"{names[0]} {keywords['metavar']}")
        if title not in sections:
            sections[title] = parser.add_argument_group(title).add_argument
        sections[title](*names, **keywords)
    parser.usage = " ".join(["%(prog)s", *usage, "[options]"])


def _argument(group: OptionGroup, option: Field[Any]) -> tuple[list[str], dict[str, Any]]:
    """Returns the names and the keywords of an argument of argparse."""
    keywords, make = dict(option.metadata), option.default_factory
    default = option.default if make is MISSING else make()
    names = [*keywords.pop("names", [f"--{option.name.replace('_', '-')}"])]
    is_positional = keywords.get("nargs") == "?" and "const" not in keywords
    if is_positional or (default is MISSING and "required" not in keywords):
        names = [option.name]
    else:
        keywords["dest"] = option.name
    keywords["default"] = None if group.repeat or group.unset or default is MISSING else default
    keywords["help"] = _help(group, option, default)
    return names, {**_reading_keywords(group, option), **keywords}


def _reading_keywords(group: OptionGroup, option: Field[Any]) -> dict[str, Any]:
    """Returns the keywords by which argparse reads the value of an option from text."""
    kind: Any = option.type
    repeats = group.repeat
    if get_origin(kinds_of(kind)[0]) is list:
        repeats = "nargs" not in option.metadata
        (kind,) = get_args(kinds_of(kind)[0])
    repeated = {"action": "append"} if repeats else {}
    first = _bare_type(kinds_of(kind)[0])
    if first is bool:
        return {"action": BooleanOptionalAction if group.unset else "store_true"}
    if get_origin(first) is Literal:
        return {"choices": get_args(first), **repeated}
    annotated = (hint for hint in kinds_of(kind) if get_origin(hint) is Annotated)
    metavars = (text for hint in annotated for text in get_args(hint)[1:] if isinstance(text, str))
    metavar = next(metavars, _METAVARS.get(first))
    return {"type": partial(value_of, kind=kind), "metavar": metavar, **repeated}


def _help(group: OptionGroup, option: Field[Any], default: Any) -> str:
    """Returns the first sentence of an option's documentation, and its default."""
    text = documentation_of(group.kind).get(option.name, "")
    words = re.search(r"(?:`None`|Empty): (.*?)\.(?: |$)", text)
    if option.name in group.defaults:
        default_text = group.defaults[option.name]
    elif words:
        default_text = words[1]
    elif isinstance(default, bool):
        default_text = ("no", "yes")[default] if group.unset else ""
    elif default in (MISSING, None, "", (), []):
        default_text = ""
    else:
        values = default if isinstance(default, list) else [default]
        default_text = " ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in values)
    sentence = first_sentence(text)
    sentence += ", repeat to compare" * (group.repeat and option.name in FIRST)
    sentence += f" (default: {default_text})" if default_text else ""
    return sentence.replace("`", "").replace("%", "%%")


def first_sentence(text: str) -> str:
    """Returns the first sentence of a documentation as help: without capital and full stop."""
    sentence = re.split(r"\.(?: |$)", text)[0]
    return sentence if sentence[1:2].isupper() else sentence[:1].lower() + sentence[1:]


def line_of(documented: object) -> str:
    """Returns the first line of a docstring."""
    return (getdoc(documented) or "").partition("\n")[0]


def documentation_of(kind: type[Any]) -> Mapping[str, str]:
    """Returns the documentation of a dataclass's fields, from "Attributes:" in its docstring."""
    entries = cleandoc(kind.__doc__ or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    _, *parts = re.split(r"^ {4}(\w+): ", entries, flags=re.MULTILINE)
    return {
        name: " ".join(text.split()) for name, text in zip(parts[::2], parts[1::2], strict=True)
    }


def axes_of(options: Namespace) -> dict[str, tuple[Any, ...]]:
    """Returns the values of the options of the decode that were given, for a sweep."""
    items = given_options(options).items()
    return {name: tuple(v) if isinstance(v, list) else (v,) for name, v in items}


def given_options(options: Namespace, names: Iterable[str] = OPTIONS) -> dict[str, Any]:
    """Returns the named options of the decode that were given, with their values."""
    return {name: v for name in names if (v := getattr(options, name)) is not None}
