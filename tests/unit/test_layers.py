"""Who may import whom: samplers <- dllm_decode <- eval <- examples, benchmarks, tests."""

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = ("samplers", "dllm_decode", "eval")
ROOFS = {"examples", "benchmarks", "tests"}
SAMPLERS_MAY_IMPORT = {"samplers", "torch", "jaxtyping"} | sys.stdlib_module_names
CONTRACT = {
    f"samplers.{name}"
    for name in (
        "base",
        "calls",
        "declared",
        "facts",
        "state",
        "view",
        "wrapper",
        "logits",
        "checks",
        "expression",
    )
}
MAY_IMPORT = {
    "safetensors": ("samplers.learn2pd",),
    "lazy_loader": ("samplers",),
    # For type checkers alone: it is not imported at run time.
    "typing_extensions": ("samplers.state",),
}
MAY_IMPORT_TRANSFORMERS = ("dllm_decode.models", "dllm_decode.training")
# These need a default sampler, read expressions of samplers, or check the laws of a decode.
MAY_IMPORT_ANY_SAMPLER = (
    "dllm_decode.training", "dllm_decode.engine.default_sampler", "dllm_decode.settings",
    "dllm_decode.cli", "dllm_decode.testing",
)  # fmt: skip
CORE_MAY_IMPORT = ("dllm_decode.core",)


class Import(NamedTuple):
    importer: str
    line: int
    imported: str
    at_load: bool


def is_within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


@cache
def statements_of(path: Path) -> list[ast.Import | ast.ImportFrom | ast.ClassDef]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.Import, ast.ImportFrom, ast.ClassDef)
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def imported_names(node: ast.AST, package: str) -> list[str]:
    """Returns absolute dotted names; `from a import b` gives `a.b`, since `b` may be a module."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = resolve_name("." * node.level + (node.module or ""), package)
        return [f"{base}.{alias.name}" for alias in node.names]
    return []


def imports_of(path: Path, root: Path) -> Iterator[Import]:
    parts = path.relative_to(root).with_suffix("").parts
    package = ".".join(parts[:-1])
    importer = package if parts[-1] == "__init__" else ".".join(parts)
    for node in statements_of(path):
        for imported in imported_names(node, package):
            # An indented import runs later, when a function is called, or is for type checkers.
            yield Import(importer, node.lineno, imported, at_load=node.col_offset == 0)


def broken_rule(use: Import) -> str | None:
    """Returns the rule that an import breaks, if any."""
    layer, top = use.importer.split(".")[0], use.imported.split(".")[0]
    if use.importer in MAY_IMPORT.get(top, ()):
        return None
    if layer == "samplers" and top not in SAMPLERS_MAY_IMPORT:
        return "samplers import torch, jaxtyping and the standard library only"
    if top in ROOFS or (top in LAYERS and LAYERS.index(top) > LAYERS.index(layer)):
        return "nothing imports a layer above its own"
    if top == "transformers" and not is_within(use.importer, MAY_IMPORT_TRANSFORMERS):
        return "only dllm_decode.models and dllm_decode.training import transformers"
    of_engine = layer == "dllm_decode" and not is_within(use.importer, MAY_IMPORT_ANY_SAMPLER)
    if of_engine and top == "samplers" and not is_within(use.imported, tuple(CONTRACT)):
        return "the engine knows the samplers' contract, no concrete sampler"
    in_core = is_within(use.importer, ("dllm_decode.core",)) and top == "dllm_decode"
    if in_core and not is_within(use.imported, CORE_MAY_IMPORT):
        return "dllm_decode.core imports samplers and itself"
    return None


def violations(root: Path) -> list[str]:
    return [
        f"{use.importer}, line {use.line}, imports {use.imported}: {rule}."
        for layer in LAYERS
        for path in sorted((root / layer).rglob("*.py"))
        for use in imports_of(path, root)
        if (rule := broken_rule(use))
    ]


def test_every_import_respects_the_layers() -> None:
    assert violations(ROOT) == []


def test_no_name_of_a_class_stands_twice() -> None:
    """A name is searched for, and is met in signatures and errors without its module."""
    counts = Counter(
        node.name
        for layer in (*LAYERS, "examples", "benchmarks")
        for path in (ROOT / layer).rglob("*.py")
        for node in statements_of(path)
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, number in counts.items() if number > 1] == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("samplers/a.py", "import numpy as np"),
        ("samplers/a.py", "from dllm_decode.core.canvas import Canvas"),
        ("samplers/a.py", "def late():\n    import transformers"),
        ("dllm_decode/a.py", "from samplers import LocalLeap"),
        ("dllm_decode/core/a.py", "from dllm_decode.caches.base import CachePolicy"),
        ("dllm_decode/core/a.py", "from ..decoder import Decoder"),
        ("dllm_decode/modelsize.py", "import transformers"),
        ("dllm_decode/__init__.py", "from eval.runner import run"),
        ("dllm_decode/__main__.py", "def main():\n    from eval.commands import evaluate"),
        ("dllm_decode/cli/a.py", "import eval"),
        ("eval/a.py", "import examples.my_sampler"),
    ],
)
def test_a_planted_violation_is_caught(tmp_path: Path, path: str, source: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(source, encoding="utf-8")
    assert len(violations(tmp_path)) == 1


def parts_of(module: str) -> str:
    """Returns the package of a module, as far down as a newcomer would name it."""
    words = module.split(".")
    return ".".join(words[: 3 if words[:2] == ["dllm_decode", "models"] else 2])


def test_no_packages_import_each_other() -> None:
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for layer in LAYERS
        for path in (ROOT / layer).rglob("*.py")
    }
    arrows: dict[str, set[str]] = {}
    for path in files.values():
        for use in imports_of(path, ROOT):
            imported = use.imported
            while imported and imported not in files:
                imported = imported.rpartition(".")[0]
            importer = parts_of(use.importer)
            if imported and use.at_load and parts_of(imported) != importer:
                arrows.setdefault(importer, set()).add(parts_of(imported))
    assert sum(map(len, arrows.values())) > 100
    # Raises CycleError, which names the packages.
    TopologicalSorter(arrows).prepare()


# As docs/architecture.md shows them: a folder imports from itself and from earlier lines.
FOLDERS = (
    ("core",), ("models", "caches", "blocks"), ("engine",), ("verify", "training"), ("settings",),
    ("text",), ("rollouts",), ("serve",), ("cli",),
)  # fmt: skip
RANKS = {name: rank for rank, names in enumerate(FOLDERS) for name in names}
# Pairs of which neither imports the other although the lines would allow it.
SIBLINGS = ("models", "caches", "blocks")
STRANGERS = {(a, b) for a in SIBLINGS for b in SIBLINGS if a != b}


def test_folders_import_upwards_as_the_page_on_architecture_says() -> None:
    checked = 0
    for path in (ROOT / "dllm_decode").rglob("*.py"):
        for use in imports_of(path, ROOT):
            importer, imported = (
                (*name.split("."), "")[1] for name in (use.importer, use.imported)
            )
            if use.imported.startswith("dllm_decode.") and {importer, imported} <= RANKS.keys():
                assert RANKS[imported] <= RANKS[importer], use
                assert (importer, imported) not in STRANGERS, use
                checked += 1
    assert checked > 100


def test_nothing_but_the_entry_imports_the_command_line() -> None:
    """A third of `eval` did, for files, models and plug-ins, which are in `settings` now."""
    importers = {
        use.importer
        for folder in (*LAYERS, "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
        for use in imports_of(path, ROOT)
        if is_within(use.imported, ("dllm_decode.cli",))
    }
    outside = {name for name in importers if not is_within(name, ("dllm_decode.cli",))}
    assert outside == {"dllm_decode.__main__"}
