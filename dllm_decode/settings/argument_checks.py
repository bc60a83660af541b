"""Checks the arguments of our plug-ins by the source that declares them, without loading torch.

A field of a plug-in declares its range in its annotation, see `samplers.checks`. Annotations with
other names than those of that module and aliases of types are checked where the plug-in is built.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

from samplers import checks

_ROOT = Path(__file__).parents[2]


class ArgumentCheck:
    """Takes the place of a plug-in's class; a call checks the arguments."""

    def __init__(self, fields: Sequence[tuple[ast.AnnAssign, Path]]) -> None:
        # A field that a subclass declares anew keeps its place.
        self._hints = {
            ast.unparse(field.target): (field.annotation, file) for field, file in fields
        }
        defaults = {
            ast.unparse(field.target): Parameter.empty if field.value is None else None
            for field, _ in fields
        }
        kind = Parameter.POSITIONAL_OR_KEYWORD
        self.__signature__ = Signature(
            [Parameter(name, kind, default=default) for name, default in defaults.items()]
        )

    def __call__(self, *arguments: object, **options: object) -> "ArgumentCheck":
        """Raises ValueError if an argument is outside the range that its field declares."""
        for name, value in self.__signature__.bind(*arguments, **options).arguments.items():
            for check, optional in checks.checks_of(_type_of(*self._hints[name])):
                if value is not None or not optional:
                    check(name, value)
        return self


def exported_names(folder: str) -> tuple[list[str], Mapping[str, Path]]:
    """Returns the names that a package exports, and the files from which it imports names."""
    stub = _ROOT / folder / "__init__.pyi"
    tree = _tree_of(stub if stub.is_file() else stub.with_suffix(".py"))
    (names,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    files: dict[str, Path] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            root = _ROOT / folder if node.level else _ROOT
            file = root / f"{node.module.replace('.', '/')}.py"
            files |= {alias.name: file for alias in node.names}
    return names, files


def argument_check_of(name: str, files: Mapping[str, Path]) -> ArgumentCheck:
    """Returns the checks of a class, given the files that define the classes of its package."""
    return ArgumentCheck(list(_fields(name, files[name])) if name in files else [])


def _fields(name: str, file: Path) -> Iterator[tuple[ast.AnnAssign, Path]]:
    """Yields the fields of a dataclass with their files, those of its base classes first.

    The class is defined in the file, or imported there from a module of ours.
    """
    for node in _tree_of(file).body if file.is_file() else ():
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            yield from _fields(name, _ROOT / f"{str(node.module).replace('.', '/')}.py")
        if isinstance(node, ast.ClassDef) and node.name == name:
            for base in node.bases:
                yield from _fields(ast.unparse(base).partition("[")[0], file)
            if node.decorator_list:
                for field in node.body:
                    if isinstance(field, ast.AnnAssign):
                        yield field, file


def _type_of(annotation: ast.expr, file: Path) -> Any:
    """Returns a type of our own source; `Any` if it has names of neither checks nor aliases."""
    known = dict(vars(checks))
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name) and node.id not in known:
            for alias in _aliases(node.id, file):
                known[node.id] = _type_of(*alias)
    try:
        return eval(ast.unparse(annotation), known)
    except (NameError, TypeError):
        return Any


def _aliases(name: str, file: Path) -> Iterator[tuple[ast.expr, Path]]:
    """Yields the type that a name of a file stands for, and the file that says so, if one does."""
    for node in _tree_of(file).body if file.is_file() else ():
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if name in map(ast.unparse, targets):
                yield node.value, file
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            yield from _aliases(name, _ROOT / f"{str(node.module).replace('.', '/')}.py")


@cache
def _tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))
