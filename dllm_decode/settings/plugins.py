"""Builds plug-ins from text, as command lines, sweep files and records name them.

A plug-in is an expression such as "LocalLeap(radius=6)", or "@card.json" for the plug-in in a card
of `calibrate`.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from inspect import isabstract
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn, TypeVar

import torch

import samplers
from dllm_decode import CachePolicy, CausalTarget, Verifier, blocks, caches, verify
from dllm_decode.blocks import BlockSchedule
from dllm_decode.settings.addresses import parse_model
from dllm_decode.settings.known import called_names
from samplers import Sampler
from samplers.checks import shown
from samplers.expression import expression_of, is_ours, parse_plugin
from samplers.facts import plugins_within

Plugin = TypeVar("Plugin")

KINDS: Mapping[str, type[Any]] = {
    "sampler": Sampler, "cache": CachePolicy, "verifier": Verifier, "blocks": BlockSchedule,
}  # fmt: skip
"""By part of a setting the class of its plug-ins."""

TITLES = {"blocks": "block schedule"}
"""Names of parts of a setting in messages, where they differ from the part's own name."""


class _Source(NamedTuple):
    """Where plug-ins of a kind come from: a package, and base classes of their own arguments."""

    part: str
    package: ModuleType
    arguments: tuple[type, ...] = ()


_SOURCES: Mapping[type, _Source] = {
    Sampler: _Source("sampler", samplers),
    CachePolicy: _Source("cache", caches),
    Verifier: _Source(
        "verifier", verify, (verify.Drafting, verify.DraftLength, verify.Proxy, verify.Router)
    ),
    BlockSchedule: _Source("blocks", blocks),
}


def no_target(source: str) -> CausalTarget:
    """Refuses to load a target."""
    raise ValueError(f"Targets cannot be loaded here, got CausalTarget({source!r}).")


def parse(
    text: str, kind: type[Plugin], target: Callable[[str], CausalTarget] = no_target
) -> Plugin:
    """Builds a plug-in of one of `KINDS` from its repr, "module:Class(...)" or "@card.json".

    For example, `parse("MultiBlock(32, open_at=0.5)", BlockSchedule)` returns a block schedule.
    `target` loads the target of a verifier such as `ARVerify(CausalTarget('mini-ar'))` by embedded
    name, folder or hub id.

    Raises:
        ValueError: If the text does not describe such a plug-in.
    """
    source = _SOURCES[kind]
    bases, expression = (kind, *source.arguments), _expression(text, source.part)
    # Getting a sampler imports it, so get all only if a message must list them.
    all_names, called = source.package.__all__, called_names(expression)
    names = called if called and {*called} <= {*all_names} else all_names
    exported = {name: getattr(source.package, name) for name in names}
    known: dict[str, Callable[..., Any]] = {
        name: member
        for name, member in exported.items()
        if isinstance(member, type) and issubclass(member, bases) and not isabstract(member)
    }
    if kind is Verifier:
        known["CausalTarget"] = target
    return parse_plugin(expression, kind, known, parts=source.arguments)


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


def canonical_plugin(text: str, part: str) -> str:
    """Returns the expression of a plug-in, or raises ValueError, before any model is loaded."""
    return expression_of(parse(text, KINDS[part], _unloaded_target))


def _unloaded_target(source: str) -> CausalTarget:
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


def build_plugins(
    parts: Mapping[str, str],
    target: Callable[[str], CausalTarget] = no_target,
    tokenizer: Any = None,
) -> dict[str, Any]:
    """Builds sampler, cache, verifier and blocks from their expressions; returns them by name.

    Raises ValueError if one cannot be built. `target` loads a verifier's causal model; plug-ins
    with texts get their tokens from the tokenizer.
    """
    plugins: dict[str, Any] = {
        part: parse(parts[part], kind, target) for part, kind in KINDS.items()
    }
    if tokenizer is None:
        return plugins
    return {part: plugin.with_tokenizer(tokenizer) for part, plugin in plugins.items()}


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
    for part in plugins_within(plugin):
        for kind in type(part).__mro__:
            if not is_ours(kind) and any(is_ours(base) for base in kind.__mro__):
                yield kind.__module__
