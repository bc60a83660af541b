"""The keywords of JSON schemas: which are followed, which are notes, and which are refused."""

import math
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any

from dllm_decode.text.constraints.machines.ecma import ExpressionError, parse
from dllm_decode.text.constraints.schemas.references import Document, SchemaError, parts_of
from samplers.checks import shown

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

# Keywords that matter for values of one type alone.
_OF_TYPE = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": (
        "items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems",
        "contains", "minContains", "maxContains", "unevaluatedItems",
    ),
    "object": (
        "properties", "patternProperties", "additionalProperties", "minProperties",
        "maxProperties", "propertyNames", "dependencies", "dependentRequired", "dependentSchemas",
        "unevaluatedProperties",
    ),
}  # fmt: skip

_REASONS = {
    "unevaluatedProperties": "it depends on what other keywords have found",
    "unevaluatedItems": "it depends on what other keywords have found",
    "$dynamicRef": "it depends on where validation began",
    "$recursiveRef": "it depends on where validation began",
}

_NOTES = frozenset((
    "title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly",
    "$schema", "$id", "id", "$comment", "$defs", "definitions", "$anchor", "$dynamicAnchor",
    "$recursiveAnchor", "$vocabulary", "contentEncoding", "contentMediaType", "contentSchema",
    "discriminator", "xml", "externalDocs", "nullable", "name", "value", "values", "version",
    "label", "order", "options", "links", "media", "method", "methods", "index", "notes", "note",
    "units", "unit", "fields", "tsType", "markdownDescription", "enumNames", "enumDescriptions",
    "errorMessage", "fileMatch", "contact",
))  # fmt: skip


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value == int(value) and value >= 0


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_map(value: Any) -> bool:
    return isinstance(value, dict)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_types(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return all(isinstance(name, str) and name in (*TYPES, "any") for name in names)


# The kind of value that each keyword must have.
_VALUES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "type": (_is_types, f"one of {', '.join(TYPES)}, or a list of them"),
    "enum": (_is_list, "a list"),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    "required": (_is_names, "a list of names"),
    "prefixItems": (_is_list, "a list of schemas"),
    "dependentRequired": (
        lambda value: _is_map(value) and all(map(_is_names, value.values())), "lists of names",
    ),
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
         "minContains", "maxContains"),
        (_is_count, "an integer of at least 0"),
    ),
    **dict.fromkeys(("minimum", "maximum"), (_is_number, "a number")),
    **dict.fromkeys(
        ("exclusiveMinimum", "exclusiveMaximum"),
        (lambda value: isinstance(value, bool) or _is_number(value), "a number"),
    ),
    **dict.fromkeys(
        ("allOf", "anyOf", "oneOf"),
        (lambda value: _is_list(value) and len(value) > 0, "a list that is not empty"),
    ),
    **dict.fromkeys(
        ("properties", "patternProperties", "dependentSchemas", "dependencies"),
        (_is_map, "an object"),
    ),
}  # fmt: skip

_ASSERTIONS = sorted({
    *_VALUES, *_REASONS, *(name for names in _OF_TYPE.values() for name in names), "const",
    "not", "if", "then", "else", "$ref",
})  # fmt: skip


def check_schema(root: Any) -> Document:
    """Returns a schema with the places of its parts.

    All parts that a value may be checked against are read, without recursion.

    Raises:
        SchemaError: If a part is no schema, or has a keyword that is not followed.
    """
    document = Document(root)
    queue: list[tuple[Any, Any, tuple[str, ...]]] = [(root, None, ())]
    seen: set[int] = set()
    for part, parent, names in queue:
        if isinstance(part, bool) or id(part) in seen:
            continue
        if not isinstance(part, dict):
            place = "/".join([document.pointer(parent), *names])
            raise SchemaError(f"{place} must be an object or a boolean, got {shown(part)}.")
        seen.add(id(part))
        kept = {name: value for name, value in part.items() if _matters(name, part)}
        if "$ref" in part:
            queue.append((document.target(part), part, ("$ref",)))
            kept = {} if document.ignores_siblings else kept
        for keyword, value in kept.items():
            problem = _problem(keyword, value)
            if problem:
                raise SchemaError(f"{document.pointer(part)}/{keyword} {problem}")
        queue.extend((inner, part, inner_names) for inner_names, inner in parts_of(kept))
    return document


def _matters(keyword: str, part: dict[str, Any]) -> bool:
    """Returns whether a keyword is about one of the types that a part allows."""
    named = part.get("type", list(TYPES))
    types = [named] if isinstance(named, str) else named
    if not isinstance(types, list) or "any" in types:
        return True
    owner = next((name for name, keywords in _OF_TYPE.items() if keyword in keywords), None)
    return owner is None or owner in types or (owner == "number" and "integer" in types)


def _problem(keyword: str, value: Any) -> str | None:
    """Returns the reason why a keyword with a value is refused; `None` if it is not."""
    if keyword in _REASONS:
        is_open = value is True or value == {}
        return None if is_open else f"must be left out, because {_REASONS[keyword]}."
    is_right, words = _VALUES.get(keyword, (None, ""))
    if is_right is not None and not is_right(value):
        return f"must be {words}, got {shown(value)}."
    if keyword == "pattern":
        return _problem_of_pattern(value)
    if keyword == "patternProperties":
        return next((problem for name in value if (problem := _problem_of_pattern(name))), None)
    near = None if _is_note(keyword) else _near(keyword, _ASSERTIONS)
    return f"is no keyword of JSON Schema. Did you mean {near!r}?" if near else None


def _problem_of_pattern(pattern: Any) -> str | None:
    if not isinstance(pattern, str):
        return f"must be a text, got {shown(pattern)}."
    try:
        parse(pattern)
    except ExpressionError as error:
        return f"must be an expression that an automaton can follow, got {error} in {pattern!r}."
    return None


def _is_note(keyword: str) -> bool:
    return keyword in _NOTES or keyword.startswith(("x-", "$$", "@", "_", "//"))


def _near(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name that another one is probably a misspelling of, if any."""
    if name in known:
        return None
    lower = {other.lower(): other for other in known}
    close = get_close_matches(name.lower(), lower, n=1, cutoff=0.85)
    return lower[close[0]] if close else None
