"""Builds plug-ins and models from text, as command lines, sweep files and records name them.

A plug-in is an expression such as "LocalLeap(radius=6)", or "@card.json" for the plug-in in a card
of `calibrate`. A model, or a task of `eval`, is an address such as "name?option=value"; its options
are read as a constructor declares them.
"""

import json
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from inspect import Parameter, isabstract, signature
from pathlib import Path
from typing import Any, Literal, NoReturn, get_origin
from urllib.parse import unquote

import torch

from dllm_decode import CachePolicy, CausalTarget, Verifier, blocks, caches, verify
from dllm_decode.blocks import BlockSchedule
from dllm_decode.settings.options import kinds_of, value_of
from samplers import Sampler, parse
from samplers.checks import shown
from samplers.expression import expression_of, is_ours, parse_plugin, parts_of

_EXAMPLE = "path/to/open-dcoder?family=open_dllm&mask_id=151665"
_READABLE = (tuple[str, ...], str, Path, bool, float, int)
TITLES = {"blocks": "block schedule"}
"""Names of parts of a setting in messages, where they differ from the part's own name."""


def _expression(text: str, part: str) -> str:
    """Returns the text, or the expression in a card if the text is "@" and the card's file."""
    if not text.startswith("@"):
        return text
    try:
        card = json.loads(Path(text[1:]).read_text(encoding="utf-8"))
        # Cards of format 1 name no schedule.
        return str({"blocks": "Sequential()", **card["expressions"]}[part])
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(
            f"A {TITLES.get(part, part)} after @ must be named by a card that calibrate wrote, "
            f"got {shown(text[1:])}."
        ) from None


def parse_sampler(text: str) -> Sampler:
    """Builds a sampler from "LocalLeap(radius=6)" or "module:Class(...)", or raises ValueError."""
    return parse(_expression(text, "sampler"))


def parse_cache(text: str) -> CachePolicy:
    """Builds a cache policy from its repr, or raises ValueError."""
    exported = {name: getattr(caches, name) for name in caches.__all__}
    policies = {
        name: kind
        for name, kind in exported.items()
        if issubclass(kind, CachePolicy) and not isabstract(kind)
    }
    return parse_plugin(_expression(text, "cache"), CachePolicy, policies)  # type: ignore[type-abstract]  # never constructed


def no_target(source: str) -> CausalTarget:
    """Refuses to load a target."""
    raise ValueError(f"Targets cannot be loaded here, got CausalTarget({source!r}).")


def parse_verifier(text: str, target: Callable[[str], CausalTarget] = no_target) -> Verifier:
    """Builds a verifier from its repr, such as `ARVerify(CausalTarget('mini-ar'))`.

    `target` loads a target by embedded name, folder or hub id. Raises ValueError if the text is no
    verifier.
    """
    exported = {name: getattr(verify, name) for name in verify.__all__}
    constructors = {name: kind for name, kind in exported.items() if not isabstract(kind)}
    constructors["CausalTarget"] = target
    parts = (verify.Drafting, verify.Proxy, verify.Router)
    return parse_plugin(_expression(text, "verifier"), Verifier, constructors, parts=parts)  # type: ignore[type-abstract]  # never constructed


def check_verifier(text: str) -> str:
    """Returns the expression of a verifier, or raises ValueError, before any model is loaded."""
    return expression_of(parse_verifier(text, _unloaded))


def _unloaded(source: str) -> CausalTarget:
    return CausalTarget(_Unloaded(), name=source)


class _Unloaded:
    """Takes the place of the network of a target that is not loaded; it is never run."""

    vocab_size = 0
    eos_ids: tuple[int, ...] = ()
    takes_positions = True
    heeds_masks = True
    device = torch.device("cpu")

    def read(self, *args: object, **options: object) -> NoReturn:
        raise NotImplementedError("This target is not loaded.")


def parse_blocks(text: str) -> BlockSchedule:
    """Builds a block schedule such as `MultiBlock(32, open_at=0.5)`, or raises ValueError."""
    return blocks.parse(_expression(text, "blocks"))


CHECKS: Mapping[str, Callable[[str], object]] = {
    "sampler": parse_sampler, "cache": parse_cache, "verifier": check_verifier,
    "blocks": parse_blocks,
}  # fmt: skip
"""By part of a setting the function that refuses a mistyped expression before a model is loaded."""


def built(
    parts: Mapping[str, str], target: Callable[[str], CausalTarget] = no_target
) -> dict[str, Any]:
    """Builds sampler, cache, verifier and blocks from their expressions; returns them by name.

    Raises ValueError if one cannot be built. `target` loads a verifier's causal model.
    """
    plugins = {name: check(parts[name]) for name, check in CHECKS.items() if name != "verifier"}
    return {**plugins, "verifier": parse_verifier(parts["verifier"], target)}


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
    never: tuple[type, ...] = (),
) -> Any:
    """Calls a constructor with options, which are read from text by the types that it declares.

    Messages contain `name`, the thing that is made, and `others`, options that are read elsewhere.
    Raises ValueError if an option is unknown or missing, a text is not of the declared type, or an
    option has a type that cannot be read from text.
    """
    # An address must not allow programs to run; only an option of the command may do so.
    declared = {
        key: option
        for key, option in signature(make, eval_str=True).parameters.items()
        if option.annotation not in never
    }
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
    return make(**{key: read(key, text, declared[key].annotation) for key, text in options.items()})


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


def sources_of(plugins: Iterable[object], model: str) -> dict[str, str]:
    """Returns, by module, digests of the files that define the user's own classes.

    Such classes are looked for in plug-ins, the task, and the model family that an address names.
    Files that their files import do not count, nor do classes that no file defines.
    """
    modules = {module for plugin in plugins for module in own_modules(plugin)}
    family, colon, _ = (parse_model(model).family or "").partition(":")
    modules |= {family} if colon else set()
    files = {module: getattr(sys.modules.get(module), "__file__", None) for module in modules}
    return {
        module: blake2b(Path(file).read_bytes(), digest_size=12).hexdigest()
        for module, file in sorted(files.items())
        if file is not None and Path(file).is_file()
    }


def own_modules(plugin: object) -> Iterator[str]:
    """Yields the modules of the user's own classes in a plug-in and in all parts that it holds."""
    for part in parts_of(plugin):
        for kind in type(part).__mro__:
            if not is_ours(kind) and any(is_ours(base) for base in kind.__mro__):
                yield kind.__module__
