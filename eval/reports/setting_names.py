"""Names of settings in tables: the parts that differ, without default arguments."""

import ast
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache

import samplers
from dllm_decode import blocks, caches, verify
from eval.metrics.costs import SummaryRow
from eval.runs.settings import named_parts

PLUGINS = ("sampler", "cache", "verifier", "blocks")
"""Fields of settings that are expressions."""

# Seeds are pooled, and the heading of a table names the task.
_HIDDEN = (*PLUGINS, "seed", "task", "task_version", "examples", "num_examples", "model")


def names_of(rows: Sequence[SummaryRow], *, short: bool = True) -> list[str]:
    """Names the rows of a table by their sampler, if any, and by all other parts that differ.

    A `short` name leaves out arguments that have their default in all rows.
    """
    plugins = [_plugins(row, rows) for row in rows]
    parts = shortened(plugins) if short else plugins
    return [
        " + ".join(dict.fromkeys([*row_parts, *_options(row, rows)]))
        for row_parts, row in zip(parts, rows, strict=True)
    ]


def _plugins(row: SummaryRow, rows: Sequence[SummaryRow]) -> list[str]:
    settings = row["settings"]
    # Without a sampler, the verifier writes the answer itself.
    parts = [settings["sampler"] or settings["verifier"], *named_parts(settings["blocks"])]
    for name in ("cache", "verifier"):
        if len({r["settings"][name] for r in rows}) > 1:
            parts += named_parts(settings[name])
    return parts


def _options(row: SummaryRow, rows: Sequence[SummaryRow]) -> list[str]:
    parts = []
    for name, value in row["settings"].items():
        if name not in _HIDDEN and len({str(r["settings"][name]) for r in rows}) > 1:
            parts.append(f"{name}={'none' if value == '' else value}")
    if len({seeds_of(r) for r in rows}) > 1:
        parts.append(f"seeds={seeds_of(row)}")
    return parts


def seeds_of(row: SummaryRow) -> str:
    """Lists the seeds, followed by their number if there are several."""
    listed = ", ".join(str(seed) for seed in row["seeds"])
    return listed if len(row["seeds"]) == 1 else f"{listed} ({len(row['seeds'])} seeds)"


def shortened(parts: Sequence[Sequence[str]]) -> list[list[str]]:
    """Leaves out default arguments, unless another setting gives the argument another value."""
    trees = {text: tree for row in parts for text in row if (tree := _parsed(text))}
    # Shortens outer calls first, while their arguments are as they were written.
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    values: dict[tuple[str, str], set[str]] = defaultdict(set)
    for call in calls:
        for keyword in call.keywords:
            values[ast.unparse(call.func), str(keyword.arg)].add(ast.unparse(keyword.value))
    for call in calls:
        _shorten(call, values)
    return [[ast.unparse(trees[text]) if text in trees else text for text in row] for row in parts]


def _parsed(text: str) -> ast.expr | None:
    """Returns the syntax tree of an expression; None for `module:Class()`, which stays as it is."""
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return None


def _shorten(call: ast.Call, values: Mapping[tuple[str, str], set[str]]) -> None:
    name = ast.unparse(call.func)
    defaults = _defaults(name)
    first = next(iter(defaults), None)
    keywords = [
        keyword
        for keyword in call.keywords
        if len(values[name, str(keyword.arg)]) > 1
        or defaults.get(str(keyword.arg)) != ast.unparse(keyword.value)
    ]
    if keywords and not call.args and keywords[0].arg == first:
        call.args = [keywords.pop(0).value]
    call.keywords = keywords


@cache
def _defaults(name: str) -> dict[str, str]:
    """Returns the fields of a plug-in of this package with the texts of their defaults."""
    classes = [getattr(m, name) for m in (samplers, blocks, caches, verify) if name in m.__all__]
    plugin_fields = fields(classes[0]) if classes and is_dataclass(classes[0]) else ()
    return {
        f.name: repr(f.default if f.default_factory is MISSING else f.default_factory())
        for f in plugin_fields
    }
