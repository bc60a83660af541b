"""Options as text: fields of dataclasses on command lines, those of `DecodeConfig` elsewhere too.

Nothing heavy is imported, so that help is shown at once.
"""

import re
from argparse import ArgumentParser, ArgumentTypeError, BooleanOptionalAction, Namespace
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, fields
from difflib import get_close_matches
from functools import partial, reduce
from inspect import cleandoc
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

    Raises ArgumentTypeError, which says what must be, if it is not of the type.
    """
    kinds, given = [bare(one) for one in kinds_of(kind)], written
    if NoneType in kinds and written == "None" and str not in kinds:
        return None
    if isinstance(written, str) and tuple[int, ...] in kinds:
        given = [part.strip() for part in written.strip("()[]").split(",") if part.strip()]
    elif isinstance(written, str) and tuple[str, ...] in kinds:
        given = written.split(",")
    elif isinstance(written, str) and float in kinds:
        # JSON has neither .5 nor 1.
        with suppress(ValueError):
            given = float(written)
    # Without None, which is written as null there.
    own: Any = reduce(or_, (one for one in kinds_of(kind) if one is not NoneType))
    try:
        return msgspec.convert(given, own, strict=False, dec_hook=lambda kind, text: kind(text))
    except msgspec.ValidationError as error:
        bound = re.search(r"(>=|<=|>) (\S+)$", str(error))
        if bound:
            limit = f"{_BOUNDS[bound[1]]} {bound[2].removesuffix('.0')}"
            raise ArgumentTypeError(f"must be {limit}, got {written}") from None
        texts = [str(text) for one in kinds for text in get_args(one) if get_origin(one) is Literal]
        wanted = [_WORDS[one] for one in kinds if one in _WORDS]
        wanted += [f"one of {', '.join(texts)}"] if texts else []
        raise ArgumentTypeError(f"must be {' or '.join(wanted)}, got {written!r}") from None


def kinds_of(kind: Any) -> tuple[Any, ...]:
    """Returns the types of a union; another type is returned alone."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def bare(kind: Any) -> Any:
    """Returns a type without its annotations."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


class OptionsOf(NamedTuple):
    """Options of a command: fields of a dataclass, whose documentation is their help.

    `Annotated` adds limits or a metavar to the type of a field. Metadata of a field are further
    keywords of `ArgumentParser.add_argument`, or other "names". A list without "nargs" is given one
    value each time. A field without a default is positional, unless it is "required".

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
) -> OptionsOf:
    """Returns options of the decode; those that are not given are None."""
    title += ", each may be repeated to compare" * repeat
    return OptionsOf(DecodeConfig, title, names, repeat, unset=True, defaults=defaults)


class OptionParser(ArgumentParser):
    """A parser that names the closest option if one is mistyped."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            known = list(self._option_string_actions)
            names = [word.partition("=")[0] for word in unknown if word.startswith("--")]
            close = [one for name in names for one in get_close_matches(name, known, n=1)]
            hint = f"; did you mean {' and '.join(close)}?" if close else ""
            # After a mistyped option its value is taken for the question, and the question is left.
            self.error(f"unrecognized arguments: {' '.join(names or unknown)}{hint}")
        return options, unknown


def add_options(parser: ArgumentParser, groups: Iterable[OptionsOf]) -> None:
    """Adds options: first those that most users need, then group by group.

    The first of two options with one name is added.
    """
    found: dict[str, tuple[OptionsOf, Field[Any]]] = {}
    for group in groups:
        for option in fields(group.kind):
            if not group.names or option.name in group.names:
                found.setdefault(option.name, (group, option))
    first = [name for name in FIRST if name in found]
    sections, given = {"": parser.add_argument}, []
    for name in dict.fromkeys([*first, *found]):
        group, option = found[name]
        names, keywords = _argument(group, option)
        title = "" if name in first or names == [name] else group.title
        if names == [name]:
            given.append(f"[{name}]" if "nargs" in keywords else name)
        elif "required" in keywords:
            given.append(f"{names[0]} {keywords['metavar']}")
        if title not in sections:
            sections[title] = parser.add_argument_group(title).add_argument
        sections[title](*names, **keywords)
    parser.usage = " ".join(["%(prog)s", *given, "[options]"])


def _argument(group: OptionsOf, option: Field[Any]) -> tuple[list[str], dict[str, Any]]:
    """Returns the names and the keywords of an argument of argparse."""
    own, make = dict(option.metadata), option.default_factory
    default = option.default if make is MISSING else make()
    names = [*own.pop("names", [f"--{option.name.replace('_', '-')}"])]
    is_given = own.get("nargs") == "?" and "const" not in own
    if is_given or (default is MISSING and "required" not in own):
        names = [option.name]
    else:
        own["dest"] = option.name
    own["default"] = None if group.repeat or group.unset or default is MISSING else default
    own["help"] = _help(group, option, default)
    return names, {**_reading(group, option), **own}


def _reading(group: OptionsOf, option: Field[Any]) -> dict[str, Any]:
    """Returns how the text of an option becomes its value."""
    kind: Any = option.type
    repeats = group.repeat
    if get_origin(kinds_of(kind)[0]) is list:
        repeats = "nargs" not in option.metadata
        (kind,) = get_args(kinds_of(kind)[0])
    repeated = {"action": "append"} if repeats else {}
    first = bare(kinds_of(kind)[0])
    if first is bool:
        return {"action": BooleanOptionalAction if group.unset else "store_true"}
    if get_origin(first) is Literal:
        return {"choices": get_args(first), **repeated}
    annotated = (one for one in kinds_of(kind) if get_origin(one) is Annotated)
    added = (text for one in annotated for text in get_args(one)[1:] if isinstance(text, str))
    metavar = next(added, _METAVARS.get(first))
    return {"type": partial(value_of, kind=kind), "metavar": metavar, **repeated}


def _help(group: OptionsOf, option: Field[Any], default: Any) -> str:
    """Returns the first sentence of the documentation, and the default."""
    text = documented(group.kind).get(option.name, "")
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
