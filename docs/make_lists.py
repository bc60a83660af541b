"""Writes the lists of plug-ins: exports, pages of the reference, the table of facts.

    make lists        # PYTHONPATH=. python docs/make_lists.py

A plug-in is any class in its package that derives from the base class of its kind, so that a new
sampler, cache policy, block schedule or verifier is in all lists without an edit by hand.
"""

import ast
import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from dllm_decode.blocks import BlockSchedule
from dllm_decode.caches import CachePolicy, DualCache, PrefixCache
from dllm_decode.engine.compatibility import facts_of_sampler
from dllm_decode.models.families import FAMILIES
from dllm_decode.verify import ARVerify, Guided, SelfVerify, Verifier
from samplers import Prophet, Sampler
from samplers.facts import FACTS, Fact, PlugIn

ROOT = Path(__file__).parents[1]


class Kind(NamedTuple):
    """One kind of plug-in.

    Attributes:
        base: Base class of the plug-ins.
        package: Package in which every module is searched for plug-ins.
        lists: Python files that import all plug-ins, and list them as `__all__`.
        page: Page of the reference, with the plug-ins under "What there is".
        exporter: Package from which users import them.
    """

    base: type
    package: str
    lists: tuple[str, ...]
    page: str
    exporter: str = "dllm_decode"


KINDS = (
    Kind(Sampler, "samplers", ("samplers/__init__.pyi",), "samplers", exporter="samplers"),
    Kind(
        CachePolicy, "dllm_decode.caches",
        ("dllm_decode/caches/__init__.py", "dllm_decode/__init__.pyi"), "caches",
    ),
    Kind(
        BlockSchedule, "dllm_decode.blocks",
        ("dllm_decode/blocks/__init__.py", "dllm_decode/__init__.pyi"), "blocks",
    ),
    Kind(
        Verifier, "dllm_decode.verify",
        ("dllm_decode/verify/__init__.py", "dllm_decode/__init__.pyi"), "verifiers",
    ),
)  # fmt: skip

VARIANTS: tuple[PlugIn, ...] = (
    Prophet(gap="all"), PrefixCache(refresh_every=8), DualCache(refresh_every=8),
    SelfVerify(draft_steps=1),
)  # fmt: skip
"""Plug-ins whose facts depend on their options; each is in the table next to the default."""


def lists() -> dict[Path, str]:
    """Returns the files that hold lists of plug-ins, and the text that each must have."""
    files: dict[Path, str] = {}
    for kind in KINDS:
        for name in kind.lists:
            path = ROOT / name
            files[path] = listed(files.get(path) or read(path), path, kind)
        path = ROOT / "docs" / "reference" / f"{kind.page}.md"
        entries = "".join(f"::: {kind.exporter}.{one.__name__}\n\n" for one in plugins(kind))
        files[path] = replaced(r"(?<=## What there is\n\n)(::: .*\n\n?)+", entries, read(path))
    files = {path: text.rstrip("\n") + "\n" for path, text in files.items()}
    path = ROOT / "docs" / "combinations.md"
    return files | {path: replaced(r"\| fact \|.*\n(\|.*\n)+", table(), read(path))}


def plugins(kind: Kind) -> list[type]:
    """Returns the plug-ins of a kind by name; those for uniform-state models come last."""
    package = import_module(kind.package)
    walked = pkgutil.walk_packages(package.__path__, f"{kind.package}.")
    modules = [package, *(import_module(module.name) for module in walked)]
    found = {
        member
        for module in modules
        for member in vars(module).values()
        if isinstance(member, type)
        and issubclass(member, kind.base)
        and not inspect.isabstract(member)
    }
    return sorted(found, key=lambda one: (is_for_noise(one), one.__name__))


def is_for_noise(plugin: type) -> bool:
    """Returns True for a sampler of uniform-state models."""
    return issubclass(plugin, Sampler) and Fact.UNIFORM_STATE in plugin().needs


def listed(text: str, path: Path, kind: Kind) -> str:
    """Returns the text of a Python file with all plug-ins of a kind imported and listed."""
    nodes = [node for node in ast.parse(text).body if isinstance(node, ast.ImportFrom)]
    known = {alias.name for node in nodes for alias in node.names}
    new = [one for one in plugins(kind) if one.__name__ not in known]
    at = nodes[0].lineno - 1
    lines = text.splitlines()
    lines[at:at] = [f"from {imported_from(one, path, kind)} import {one.__name__}" for one in new]
    text = "\n".join(lines) + "\n"
    exports = "".join(f'    "{one.__name__}",\n' for one in new)
    text = re.sub(r"(?<=^__all__ = \[\n)", exports, text, flags=re.MULTILINE)
    return tidied(text, path)


def imported_from(plugin: type, path: Path, kind: Kind) -> str:
    """Returns the module from which a file imports a plug-in; stubs name it relatively."""
    if path.suffix == ".py":
        return plugin.__module__
    package = path.parent.name
    module = plugin.__module__ if kind.package == package else kind.package
    return module.removeprefix(package)


def tidied(text: str, path: Path) -> str:
    """Sorts imports and `__all__` and formats, as `make fix` does."""
    for command in (["check", "--fix-only", "--quiet", "--select=I,RUF022"], ["format"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, f"--stdin-filename={path}", "-"],
            input=text, capture_output=True, text=True, check=True, cwd=ROOT,
        )  # fmt: skip
        text = done.stdout
    return text


def table() -> str:
    """Returns the table of facts in Markdown: which plug-ins need a fact, and which give it."""
    every = examples()
    rows = ["| fact | what is needed | needed by | given by |", "| --- | --- | --- | --- |"]
    for name, fact in FACTS.items():
        needed = cell(every, lambda one, fact=fact: fact in one.needs)
        given = cell(every, lambda one, fact=fact: fact in facts_given(one))
        if fact.giver == "model":
            given = ", ".join(models_that_give(fact))
        rows.append(f"| `{name}` | {fact.sentence} | {needed} | {given} |")
    return "\n".join(rows) + "\n"


def cell(every: Sequence[PlugIn], is_named: Callable[[PlugIn], bool]) -> str:
    """Lists plug-ins; if they are most of the samplers, those samplers that are not among them."""
    samplers = [one for one in every if isinstance(one, Sampler)]
    others = [one for one in samplers if not is_named(one)]
    named = [one for one in every if is_named(one)]
    if 2 * len(others) >= len(samplers):
        return ", ".join(map(short, named))
    rest = [f"; {short(one)}" for one in named if one not in samplers]
    return f"all samplers but {', '.join(map(short, others))}{''.join(rest)}"


def facts_given(plugin: PlugIn) -> frozenset[Fact]:
    """Returns the facts that a plug-in gives, with those that follow from the scope and needs."""
    return facts_of_sampler(plugin) if isinstance(plugin, Sampler) else plugin.gives


def examples() -> Sequence[PlugIn]:
    """Returns one plug-in of each class with its defaults, and the variants."""
    made: list[Any] = []
    for kind in KINDS:
        # These need a target; they need no fact and give none.
        classes = [one for one in plugins(kind) if one not in (ARVerify, Guided)]
        made += [one() for one in classes]
    return [each for one in made for each in (one, *(v for v in VARIANTS if type(v) is type(one)))]


def models_that_give(fact: Fact) -> list[str]:
    """Returns the families whose checkpoints give a fact about models."""
    if fact == Fact.UNIFORM_STATE:
        return ["DiffusionGemma"]
    if fact == Fact.ANY_SUBSET:
        return ["XLNet"]
    if fact == Fact.HAS_MASK:
        return ["all others"]
    return [
        family.name
        for family in FAMILIES.values()
        if not (family.logit_shift if fact == Fact.OWN_COLUMN_LOGITS else family.block_length)
    ] + ["DiffusionGemma", "XLNet"]


def short(plugin: PlugIn) -> str:
    """Returns the repr without the options that have their defaults."""
    usual = vars(type(plugin)())
    options = [f"{name}={value!r}" for name, value in vars(plugin).items() if value != usual[name]]
    return f"`{type(plugin).__name__}({', '.join(options)})`"


def read(path: Path) -> str:
    """Returns the text of a file."""
    return path.read_text(encoding="utf-8")


def replaced(pattern: str, text: str, page: str) -> str:
    """Replaces the one part of a page that matches."""
    new, number = re.subn(pattern, lambda _: text, page)
    if number != 1:
        raise ValueError(f"A page must have one part {pattern!r}, got {number}.")
    return new


if __name__ == "__main__":
    for written, content in lists().items():
        written.write_text(content, encoding="utf-8")
