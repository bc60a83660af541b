"""Reads automata over bytes: which JSON values they accept, and random texts of them."""

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.schemas import is_accepted
from dllm_decode.text.constraints import JsonSchema
from dllm_decode.text.constraints.machines.limits import processor_limit
from dllm_decode.text.constraints.machines.octets import Octets
from dllm_decode.text.constraints.machines.tables import distances

NAMES = ("a", "b", "ab", "c")
VALUES: list[Any] = [
    None, True, False, 0, 1, 2, 3, -1, 1.5, 10, 2.25, "", "a", "ab", "abc", "b", 'x"', "é", [], [1],
    [1, 2], ["a"], [1, "a"], [2, 2], [[1]], [None, 3], {}, {"a": 1}, {"a": "x"}, {"b": 2},
    {"a": 1, "b": 2}, {"a": "ab", "b": 1}, {"ab": 1}, {"a": 1, "ab": 2}, {"a": 1, "b": 1, "c": 1},
    {"c": {"a": 1}}, {"a": [1]}, {"d": 1}, {"a": 1, "d": "x"}, {"a": None},
]  # fmt: skip


def compiled(schema: Any, **options: Any) -> Octets:
    with processor_limit(60.0):
        return JsonSchema(schema, **options).octets()


def accepts_value(octets: Octets, value: Any) -> bool:
    """Returns whether a value is accepted with the members of its objects in some order."""
    return any(is_accepted(octets, text) for text in _written(value))


def _written(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        yield from (f"[{parts}]" for parts in _joined(list(value)))
    elif isinstance(value, dict):
        yield from (f"{{{parts}}}" for parts in _members(value))
    else:
        yield json.dumps(value, ensure_ascii=False)


def _joined(values: list[Any]) -> Iterator[str]:
    if not values:
        yield ""
        return
    for first in _written(values[0]):
        for rest in _joined(values[1:]):
            yield f"{first},{rest}" if values[1:] else first


def _members(members: dict[str, Any]) -> Iterator[str]:
    if not members:
        yield ""
    for name in members:
        others = {other: value for other, value in members.items() if other != name}
        for value in _written(members[name]):
            for rest in _members(others):
                member = f"{json.dumps(name, ensure_ascii=False)}:{value}"
                yield f"{member},{rest}" if others else member


def sampled(octets: Octets, draw: random.Random, count: int) -> list[str]:
    """Returns random texts: a walk along random edges, then the shortest way to an end."""
    steps = distances(octets.table, octets.accepting)
    texts = []
    for _ in range(count):
        state, text, length = 0, bytearray(), draw.choice((8, 30, 80))
        while steps[state] > 0 or (len(text) < length and draw.random() < 0.8):
            row = octets.table[state]
            live = np.flatnonzero(row >= 0)
            if not live.size:
                break
            if len(text) >= length:
                live = live[steps[row[live]] == steps[row[live]].min()]
            # A target first, so that a quote is as likely as all letters together.
            target = draw.choice(sorted(set(row[live].tolist())))
            text.append(int(draw.choice(live[row[live] == target].tolist())))
            state = int(row[text[-1]])
        texts.append(text.decode())
    return texts


def random_schema(draw: random.Random, levels: int = 2) -> Any:
    """Returns a random schema with most keywords."""
    if draw.random() < 0.05:
        return draw.choice([True, False, {}])
    types = ["integer", "number", "string", "array", "object", "object", "null"]
    bounds = [0, 1, 1.5, 2, -1, 2.25, 10]
    values: dict[str, Any] = {
        "type": lambda: draw.choice([*types, ["string", "object"], ["integer", "array"]]),
        "enum": lambda: draw.sample(VALUES, 4), "const": lambda: draw.choice(VALUES),
        "minimum": lambda: draw.choice(bounds), "exclusiveMaximum": lambda: draw.choice(bounds),
        "multipleOf": lambda: draw.choice([2, 0.5, 3]), "minLength": lambda: draw.choice([1, 2]),
        "maxLength": lambda: draw.choice([1, 2, 3]), "minItems": lambda: draw.choice([1, 2]),
        "maxItems": lambda: draw.choice([1, 2]),
        "pattern": lambda: draw.choice(["^a", "b$", "a|b", "^[ab]*$", "^[^a]"]),
    }  # fmt: skip
    chances = dict.fromkeys(values, 0.09) | {"type": 0.6}
    if levels:

        def part() -> Any:
            return random_schema(draw, levels - 1)

        nested = {
            "items": part, "prefixItems": lambda: [part(), part()], "contains": part,
            "properties": lambda: {name: part() for name in draw.sample(NAMES, 2)},
            "patternProperties": lambda: {draw.choice(["^a", "b"]): part()},
            "additionalProperties": lambda: draw.choice([False, part()]),
            "required": lambda: draw.sample(NAMES, 1), "minProperties": lambda: 1,
            "maxProperties": lambda: draw.choice([1, 2]),
            "propertyNames": lambda: {"pattern": "^[ab]"},
            "dependentRequired": lambda: {"a": ["b"]}, "dependentSchemas": lambda: {"a": part()},
            "allOf": lambda: [part(), part()], "anyOf": lambda: [part(), part()],
            "oneOf": lambda: [part(), part()], "not": part, "if": part,
        }  # fmt: skip
        values |= nested
        chances |= dict.fromkeys(nested, 0.09) | {"properties": 0.35, "oneOf": 0.15}
    schema = {name: make() for name, make in values.items() if draw.random() < chances[name]}
    if "if" in schema:
        schema |= {"then": random_schema(draw, 0), "else": random_schema(draw, 0)}
    return schema
