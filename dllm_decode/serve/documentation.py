"""The page of all paths and fields, which needs neither scripts nor other machines."""

from collections.abc import Mapping
from html import escape
from typing import Any


def documentation(description: Mapping[str, Any]) -> str:
    """Returns a page that shows an OpenAPI description: the paths, and the fields of objects."""
    paths = [
        # Lines may end after a slash, and within no word.
        (
            f"{method.upper()} {path.replace('/', '/<wbr>')}",
            escape(route.get("description", "")),
            _body_kind(route),
        )
        for path, methods in description["paths"].items()
        for method, route in methods.items()
    ]
    parts = [_table("", paths)]
    for name, schema in description["components"]["schemas"].items():
        needed = schema.get("required", ())
        rows = [
            (escape(field), _kind(part), "needed" if field in needed else "")
            for field, part in schema.get("properties", {}).items()
        ]
        parts.append(f'<h2 id="{escape(name)}">{escape(name)}</h2>')
        parts.append(_table(escape(schema.get("description", "")), rows))
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<title>dllm-decode: paths</title><link rel="icon" href="data:,">'
        '<link rel="stylesheet" href="page.css"><main><h1>Paths and fields</h1>'
        '<p class="soft">For programs: <a href="openapi.json">openapi.json</a>. A field that is '
        f"not listed is refused by its name.</p>{''.join(parts)}</main>"
    )


def _body_kind(route: Mapping[str, Any]) -> str:
    """Returns the kind of a request's body; empty if the request has no body."""
    body = route.get("requestBody")
    return "" if body is None else _kind(body["content"]["application/json"]["schema"])


def _kind(schema: Mapping[str, Any]) -> str:
    """Returns a schema in a few words."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "enum" in schema or "const" in schema:
        return " or ".join(escape(repr(v)) for v in schema.get("enum", [schema.get("const")]))
    if "anyOf" in schema:
        return " or ".join(_kind(part) for part in schema["anyOf"] if part.get("type") != "null")
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}" if schema.get("items") else "list"
    return escape(schema.get("type", "any value"))


def _table(caption: str, rows: list[tuple[str, str, str]]) -> str:
    lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<table><caption class="soft">{caption}</caption>{lines}</table>'
