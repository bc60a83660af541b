"""The keywords of JSON schemas: which are followed, which are notes, and which are refused."""

import math
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from dllm_decode.text.constraints.machines.ecma import ExpressionError, parse
from dllm_decode.text.constraints.schemas.numbers import is_bound, is_step
from dllm_decode.text.constraints.schemas.references import (
    PARTS,
    Document,
    SchemaError,
    below,
    subschemas_of,
)
from samplers.checks import shown

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object", "any")

# Keywords that are refused, unless they change nothing: their values then, and the reason.
_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "unevaluatedProperties": ((True, {}), "it depends on what other keywords have found"),
    "unevaluatedItems": ((True, {}), "it depends on what other keywords have found"),
    "uniqueItems": ((False,), "an automaton cannot compare items"),
    "$dynamicRef": ((), "it depends on where validation began"),
    "$recursiveRef": ((), "it depends on where validation began"),
}
_NOTES = ("x-", "$$", "@", "_", "//", "note")


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # A whole number may be too large for a float.
    return is_number and (isinstance(value, int) or math.isfinite(value))


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_map(value: Any) -> bool:
    return isinstance(value, dict)


def _is_types(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return all(isinstance(name, str) and name in TYPES for name in names)


# The kind of value that some keywords must have.
_KINDS: list[tuple[str, Callable[[Any], bool], tuple[str, ...]]] = [
    (f"one of {', '.join(TYPES[:-1])}, or a list of them", _is_types, ("type",)),
    ("a list", lambda value: isinstance(value, list), ("enum",)),
    ("a number above 0 with few digits", lambda value: _is_number(value) and is_step(value),
     ("multipleOf",)),
    ("a number of at most 60 digits", lambda value: _is_number(value) and is_bound(value),
     ("minimum", "maximum")),
    ("a number of at most 60 digits",
     lambda value: isinstance(value, bool) or (_is_number(value) and is_bound(value)),
     ("exclusiveMinimum", "exclusiveMaximum")),
    ("an integer of at least 0", lambda value: _is_number(value) and value >= 0 and value % 1 == 0,
     ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
      "minContains", "maxContains")),
    ("a list of names", _is_names, ("required",)),
    ("lists of names", lambda value: _is_map(value) and all(map(_is_names, value.values())),
     ("dependentRequired",)),
    ("a list of schemas", lambda value: isinstance(value, list) and len(value) > 0,
     ("allOf", "anyOf", "oneOf", "prefixItems")),
    ("an object", _is_map,
     ("properties", "patternProperties", "dependentSchemas", "dependencies")),
    ("a text", lambda value: isinstance(value, str), ("pattern",)),
]  # fmt: skip
_KIND_OF = {keyword: kind[:2] for kind in _KINDS for keyword in kind[2]}

_ASSERTIONS = {*_KIND_OF, *_REFUSED, *PARTS, "format", "const", "$ref"}
_LOWER = {keyword.lower(): keyword for keyword in sorted(_ASSERTIONS)}


def read_schema(root: Any) -> Document:
    """Returns a schema with the places of its parts.

    All parts that a value may be checked against are read, without recursion.

    Raises:
        SchemaError: If a part is no schema, or has a keyword that is not followed.
    """
    document = Document(root)
    queue: list[tuple[Any, str]] = [(root, "#")]
    seen: set[int] = set()
    for part, pointer in queue:
        if isinstance(part, bool) or id(part) in seen:
            continue
        if not isinstance(part, dict):
            raise SchemaError(f"{pointer} must be an object or a boolean, got {shown(part)}.")
        seen.add(id(part))
        if "$ref" in part:
            queue.append((document.target(part), f"{document.pointer(part)}/$ref"))
            if document.ignores_siblings:
                continue
        pointer = document.pointer(part)
        for keyword, value in part.items():
            problem = _problem(keyword, value)
            if problem:
                raise SchemaError(f"{pointer}/{keyword} {problem}")
        queue.extend((inner, below(pointer, names)) for names, inner in subschemas_of(part))
    return document


def _problem(keyword: str, value: Any) -> str | None:
    """Returns the reason why a keyword with a value is refused; `None` if it is not."""
    if keyword in _REFUSED:
        no_ops, reason = _REFUSED[keyword]
        return None if value in no_ops else f"must be left out, because {reason}."
    if keyword in _KIND_OF:
        words, is_right = _KIND_OF[keyword]
        if not is_right(value):
            return f"must be {words}, got {shown(value)}."
    if keyword in ("pattern", "patternProperties"):
        return _problem_of_patterns([value] if keyword == "pattern" else value)
    if keyword in _ASSERTIONS or keyword.startswith(_NOTES):
        return None
    near = _near(keyword)
    return f"is no keyword of JSON Schema. Did you mean {_LOWER[near[0]]!r}?" if near else None


@lru_cache(maxsize=1000)
def _near(keyword: str) -> list[str]:
    return get_close_matches(keyword.lower(), _LOWER, n=1, cutoff=0.85)


def _problem_of_patterns(patterns: Iterable[str]) -> str | None:
    for pattern in patterns:
        try:
            parse(pattern)
        except ExpressionError as error:
            return (
                f"must be an expression that an automaton can follow, got {error} in {pattern!r}."
            )
    return None
