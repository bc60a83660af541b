"""Tells from the shape of two JSON schemas whether they have no value in common."""

from collections.abc import Callable
from typing import Any

_KINDS = frozenset({"null", "boolean", "integer", "fraction", "string", "array", "object"})


def are_apart(one: Any, other: Any, *, resolve: Callable[[Any], Any]) -> bool:
    """Returns True if no value is valid for both schemas; False if that is not known.

    Schemas are apart by their types, by the values that they list, or by a property that both
    require and whose schemas are apart. No schema may refer to itself; `resolve` returns the part
    that a `$ref` names.
    """
    one, other = _resolved(one, resolve), _resolved(other, resolve)
    for first, second in ((one, other), (other, one)):
        parts = _alternatives(first)
        if parts:
            return all(are_apart(part, second, resolve=resolve) for part in parts)
    common_kinds = _kinds_of(one) & _kinds_of(other)
    values, other_values = _listed(one), _listed(other)
    if values is not None and other_values is not None:
        return not any(value in other_values for value in values)
    if common_kinds == {"object"}:
        required = {*one.get("required", [])} & {*other.get("required", [])}
        left, right = one.get("properties", {}), other.get("properties", {})
        return any(are_apart(left.get(name), right.get(name), resolve=resolve) for name in required)
    return not common_kinds


def _resolved(schema: Any, resolve: Callable[[Any], Any]) -> dict[str, Any]:
    """Returns the schema that a `$ref`, or an `allOf` with one part, leads to."""
    while isinstance(schema, dict) and ("$ref" in schema or "allOf" in schema):
        schema = resolve(schema["$ref"]) if "$ref" in schema else schema["allOf"][0]
    return schema if isinstance(schema, dict) else {}


def _alternatives(schema: dict[str, Any]) -> list[Any]:
    return [*schema.get("anyOf", []), *schema.get("oneOf", [])]


def _listed(schema: dict[str, Any]) -> list[Any] | None:
    """Returns the values that a schema lists; `None` if it lists none."""
    if "enum" in schema:
        return list(schema["enum"])
    return [schema["const"]] if "const" in schema else None


def _kinds_of(schema: dict[str, Any]) -> frozenset[str]:
    """Returns the kinds of values that a schema allows."""
    listed = _listed(schema)
    if listed is not None:
        return frozenset(_kind_of(value) for value in listed)
    if "type" not in schema:
        return _KINDS
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return frozenset(types) | ({"integer", "fraction"} if "number" in types else set())


def _kind_of(value: Any) -> str:
    names = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}
    if isinstance(value, float):
        return "integer" if value.is_integer() else "fraction"
    return names.get(type(value), "null")
