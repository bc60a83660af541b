"""Names of settings in tables: what tells them apart, without arguments that are the default."""

import ast
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache

import samplers
from dllm_decode import blocks, caches, verify
from eval.metrics.costs import Row
from eval.runs.settings import named_parts

PLUGINS = ("sampler", "cache", "verifier", "blocks")
"""Fields of settings that are expressions."""

# Seeds are pooled, and the heading of a table names the task.
_HIDDEN = (*PLUGINS, "seed", "task", "task_version", "examples", "num_examples", "model")


def names_of(rows: Sequence[Row], *, short: bool = True) -> list[str]:
    """Names the rows of a table by their sampler, if any, and by all else that tells them apart.

    A `short` name leaves out arguments that have their default in all rows.
    """
    plugins = [_plugins(row, rows) for row in rows]
    parts = shortened(plugins) if short else plugins
    return [
        " + ".join(dict.fromkeys([*own, *_options(row, rows)]))
        for own, row in zip(parts, rows, strict=True)
    ]


def _plugins(row: Row, rows: Sequence[Row]) -> list[str]:
    own = row["settings"]
    # If the verifier asks no sampler, it writes the answer itself.
    parts = [own["sampler"] or own["verifier"], *named_parts(own["blocks"])]
    for name in ("cache", "verifier"):
        if len({other["settings"][name] for other in rows}) > 1:
            parts += named_parts(own[name])
    return parts


def _options(row: Row, rows: Sequence[Row]) -> list[str]:
    parts = []
    for name, value in row["settings"].items():
        if name not in _HIDDEN and len({str(other["settings"][name]) for other in rows}) > 1:
            parts.append(f"{name}={'none' if value == '' else value}")
    if len({seeds_of(other) for other in rows}) > 1:
        parts.append(f"seeds={seeds_of(row)}")
    return parts


def seeds_of(row: Row) -> str:
    """Names the seeds, and how many there are if it is more than one."""
    listed = ", ".join(str(seed) for seed in row["seeds"])
    return listed if len(row["seeds"]) == 1 else f"{listed} ({len(row['seeds'])} seeds)"


def shortened(parts: Sequence[Sequence[str]]) -> list[list[str]]:
    """Leaves out arguments that have their default, unless another setting gives them otherwise."""
    trees = {text: tree for own in parts for text in own if (tree := _parsed(text))}
    # Outer calls come first, while their arguments are as they were written.
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    values: dict[tuple[str, str], set[str]] = defaultdict(set)
    for call in calls:
        for word in call.keywords:
            values[ast.unparse(call.func), str(word.arg)].add(ast.unparse(word.value))
    for call in calls:
        _shorten(call, values)
    return [[ast.unparse(trees[text]) if text in trees else text for text in own] for own in parts]


def _parsed(text: str) -> ast.expr | None:
    """Returns the syntax tree of an expression; None for `module:Class()`, which is shown whole."""
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return None


def _shorten(call: ast.Call, values: Mapping[tuple[str, str], set[str]]) -> None:
    name = ast.unparse(call.func)
    defaults = _defaults(name)
    first = next(iter(defaults), None)
    kept = [
        word
        for word in call.keywords
        if len(values[name, str(word.arg)]) > 1
        or defaults.get(str(word.arg)) != ast.unparse(word.value)
    ]
    if kept and not call.args and kept[0].arg == first:
        call.args = [kept.pop(0).value]
    call.keywords = kept


@cache
def _defaults(name: str) -> dict[str, str]:
    """Returns the fields of a plug-in of this package with the texts of their defaults."""
    found = [vars(m)[name] for m in (samplers, blocks, caches, verify) if name in m.__all__]
    own = fields(found[0]) if found and is_dataclass(found[0]) else ()
    return {
        one.name: repr(one.default if one.default_factory is MISSING else one.default_factory())
        for one in own
    }
