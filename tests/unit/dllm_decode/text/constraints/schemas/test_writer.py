"""JSON schemas as automata: keywords, refusals, sizes; `jsonschema` is the judge of answers."""

import json
import random
import re
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import jsonschema
import pytest
from json_languages import VALUES, accepts_value, compiled, random_schema, sampled

from benchmarks.schemas import is_accepted
from dllm_decode.text.constraints import JsonSchema
from dllm_decode.text.constraints.machines.limits import TooLargeError
from dllm_decode.text.constraints.schemas.formats import NAMES
from dllm_decode.text.constraints.schemas.references import SchemaError

NULL: Any = {"type": "null"}
INT: Any = {"type": "integer"}
TEXT: Any = {"type": "string"}
TREE = {
    "$defs": {"n": {"type": "object", "properties": {
        "v": INT, "kids": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "required": ["v"]}},
    "$ref": "#/$defs/n",
}  # fmt: skip
KEYWORDS: list[tuple[Any, list[Any], list[Any]]] = [
    ({"type": "integer", "minimum": 3, "maximum": 17}, [3, 17], [2, 18, 1.5, "x"]),
    ({"type": "number", "exclusiveMinimum": 0, "multipleOf": 0.5}, [1.5, 3], [0, 1.25, -1]),
    ({"minimum": 2, "exclusiveMinimum": True, "type": "integer"}, [3], [2]),
    ({"type": "string", "minLength": 2, "maxLength": 4}, ["ab", 'é"\n', "abcd"], ["a", "abcde"]),
    ({"type": "string", "maxLength": 1000}, ["a" * 1000, "é" * 1000], ["a" * 1001]),
    ({"pattern": "^a+$", "maxLength": 2, "type": "string"}, ["a", "aa"], ["aaa", "b"]),
    ({"type": "string", "format": "date"}, ["2024-02-29", "2024-12-31"],
     ["2023-02-29", "0000-01-01"]),
    ({"type": "string", "format": "uri"}, ["http://a/b?c"], ["http://a/%"]),
    ({"type": "object", "properties": {"a": INT, "b": TEXT, "c": NULL}, "required": ["b"]},
     [{"a": 1, "b": ""}, {"b": "", "c": None}], [{}, {"a": 1}, {"b": "", "d": 1}]),
    ({"type": "object", "properties": {"a": INT, "ab": TEXT}, "additionalProperties": INT},
     [{}, {"a": 1, "b": 3}, {"ab": "x", "aa": 1, "abc": 2}], [{"ab": 1}, {"x": ""}]),
    ({"patternProperties": {"^x": INT, "y$": {"maximum": 5}}, "additionalProperties": False,
      "type": "object"}, [{}, {"x": 7, "y": 3}, {"xy": 2}], [{"xy": 7}, {"z": 1}]),
    ({"type": "object", "properties": {}}, [{}], [{"a": 1}]),
    ({"type": "object"}, [{}, {"a": [1]}], [[]]),
    ({"type": "object", "required": ["a"]}, [{"a": 1, "b": 2}], [{"b": 1}]),
    ({"type": "object", "properties": {"a": NULL}, "minProperties": 2, "required": ["a"]},
     [{"a": None, "b": 1}], [{"a": None}]),
    ({"type": "object", "minProperties": 2, "maxProperties": 2, "additionalProperties": False,
      "properties": dict.fromkeys("abc", NULL)}, [{"a": None, "c": None}], [{}]),
    ({"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}, "additionalProperties": INT},
     [{"a": 1}], [{"A": 1}]),
    ({"dependentRequired": {"a": ["b"]}, "properties": {"a": NULL, "b": NULL}, "type": "object"},
     [{}, {"b": None}, {"a": None, "b": None}], [{"a": None}]),
    ({"dependencies": {"a": {"required": ["b"]}}}, [1, {"b": 1}, {"a": 1, "b": 2}], [{"a": 1}]),
    ({"type": "array", "items": INT, "minItems": 2, "maxItems": 3}, [[1, 2], [1] * 3],
     [[1], [1] * 4]),
    ({"type": "array", "prefixItems": [INT, TEXT], "items": NULL}, [[], [1], [1, "a", None]],
     [["a"]]),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "items": [INT],
      "additionalItems": False}, [[], [1]], [[1, 2]]),
    ({"type": "array", "items": INT, "contains": {"const": 5}}, [[5], [1, 5]], [[], [1]]),
    ({"type": "array", "contains": {"const": 5}, "minContains": 2, "maxContains": 3},
     [[5, 5], [5, 1, 5, 5]], [[5], [5] * 4]),
    ({"type": "array", "uniqueItems": False, "items": INT}, [[], [1, 1]], [["a"]]),
    ({"oneOf": [INT, {"type": "number", "minimum": 2}]}, [1, 2.5], [2, 3, 1.5]),
    ({"allOf": [{"properties": {"a": INT}}, {"properties": {"b": INT}}], "type": "object"},
     [{"a": 1, "b": 2}], [{"a": ""}, {"c": 1}]),
    ({"not": {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}},
     [1, {}, {"a": 2}, []], [{"a": 1}]),
    ({"properties": {"k": {"enum": ["a", "b"]}, "v": {}}, "required": ["k", "v"], "type": "object",
      "if": {"properties": {"k": {"const": "a"}}}, "then": {"properties": {"v": INT}},
      "else": {"properties": {"v": TEXT}}},
     [{"k": "a", "v": 1}, {"k": "b", "v": "s"}], [{"k": "a", "v": "s"}, {"k": "b", "v": 1}]),
    (TREE, [{"v": 1}, {"v": 1, "kids": [{"v": 2, "kids": []}]}], [{}, {"v": 1, "kids": [{}]}]),
    ({"$ref": "#/$defs/p%25q", "$defs": {"p%q": INT, "p%25q": TEXT}}, [1], ["x"]),
    ({"$id": "http://x/a", "$ref": "b", "$defs": {"i": {"$id": "b", "type": "null"}}}, [None], [1]),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a": INT},
      "properties": {"a": {"$ref": "#/definitions/a", "minimum": 5}}}, [{"a": 1}], [{"a": ""}]),
    ({"enum": [1, 2.5, None, "é", {"x": [1, {}]}], "x-note": 1, "format": "int32"},
     [1, 2.5, None, "é", {"x": [1, {}]}], [2, "e", {}]),
    ({"type": "integer", "format": "int32", "description": ""}, [1], ["1"]),
    ({}, [None, 1e-3, [1, [2]], {"a": {"b": []}}], []),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "valid", "invalid"), KEYWORDS, ids=lambda case: str(case)[:60])
def test_a_keyword_means_what_the_standard_says(schema: Any, valid: Any, invalid: Any) -> None:
    octets = compiled(schema)
    for value in valid:
        for separators in ((",", ":"), (", ", ": ")):
            text = json.dumps(value, ensure_ascii=False, separators=separators)
            assert is_accepted(octets, text), text
            assert not is_accepted(octets, text + "}")
    assert not [value for value in invalid if accepts_value(octets, value)]
    validator = jsonschema.Draft202012Validator(schema)
    texts = sampled(octets, random.Random(0), 10)
    if "$schema" not in schema and schema.get("exclusiveMinimum") is not True:
        assert [text for text in texts if not validator.is_valid(json.loads(text))] == []


def test_texts_of_formats_are_valid() -> None:
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    for name in sorted(NAMES & checker.checkers.keys()):
        for text in sampled(compiled({"type": "string", "format": name}), random.Random(0), 40):
            checker.check(json.loads(text), name)


@pytest.mark.parametrize("seed", [*range(8), *[
    pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 400)]])  # fmt: skip
def test_a_random_schema_accepts_valid_values_alone(seed: int) -> None:
    """An empty set that had lost values counted as empty, so that oneOf let both parts through."""
    draw = random.Random(seed)
    schema = random_schema(draw)
    validator = jsonschema.Draft202012Validator(schema)
    if not isinstance(schema, dict):
        return
    try:
        octets = compiled(schema, extra_keys=bool(seed % 2))
    except (SchemaError, TooLargeError):
        # No value is valid, or a keyword has no automaton.
        return
    counts: Counter[bool] = Counter()
    for value in VALUES:
        if accepts_value(octets, value):
            assert validator.is_valid(value), (value, schema)
        elif seed % 2:
            counts[validator.is_valid(value)] += 1
    for text in sampled(octets, draw, 8):
        assert validator.is_valid(json.loads(text)), (text, schema)
    assert counts[True] <= 0.2 * len(VALUES)


def test_a_list_is_never_longer_than_its_bound() -> None:
    """Items of `prefixItems` were written although `not` had left the empty list alone."""
    octets = compiled({"prefixItems": [{"type": "string"}], "not": {"minItems": 1, "maxItems": 2}})
    assert [accepts_value(octets, value) for value in ([], ["a"], ["a", 1, 2])] == [
        True,
        False,
        True,
    ]


def test_extra_keys_open_what_the_standard_leaves_open() -> None:
    schema = {"type": "object", "properties": {"a": INT}, "required": ["a"]}
    value = {"a": 1, "x": {"y": [None]}}
    assert not accepts_value(compiled(schema), value)
    assert accepts_value(compiled(schema, extra_keys=True), value)
    closed = {**schema, "additionalProperties": False}
    assert not accepts_value(compiled(closed, extra_keys=True), value)


def test_a_number_that_must_differ_from_a_bound_differs_as_a_double_too() -> None:
    """9.99999999999999999 is 10.0 for every parser of JSON."""
    for schema in ({"exclusiveMaximum": 10}, {"not": {"minimum": 10}}, {"not": {"const": 10}}):
        octets = compiled({"type": "number", **schema})
        assert is_accepted(octets, "9.99999999999999")
        assert not is_accepted(octets, "9.99999999999999999")
    assert is_accepted(compiled({"type": "number", "maximum": 180}), "-122.08474259999999")


REFUSED: list[tuple[Any, str]] = [
    ({"type": "text"}, "#/type must be one of null, boolean, integer"),
    ({"type": "string", "maxLnegth": 3}, "#/maxLnegth is no keyword of JSON Schema. Did you mean"),
    ({"properties": {"a/b~": {"items": {"unevaluatedProperties": False}}}},
     "#/properties/a~1b~0/items/unevaluatedProperties must be left out, because it depends"),
    ({"anyOf": [NULL, {"allOf": []}]}, "#/anyOf/1/allOf must be a list of schemas, got []"),
    ({"$ref": "#/$defs/No"}, "#/$ref must name a part of the same schema"),
    ({"$ref": "http://x/y"}, "#/$ref must name a part of the same schema"),
    ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#"}}}, "must not lead back to itself"),
    ({"$dynamicRef": "#a"}, "#/$dynamicRef must be left out"),
    ({"properties": {"a": {"type": "string", "pattern": "^\\bA$"}}},
     "#/properties/a/pattern must be an expression that an automaton can follow, got an escape"),
    ({"patternProperties": {"(?=a)": {}}}, "#/patternProperties must"),
    ({"type": "array", "items": {}, "uniqueItems": True}, "#/uniqueItems must be left out, bec"),
    ({"type": "array", "allOf": [{"contains": INT}, {"contains": TEXT}]}, "/contains must be"),
    ({"type": "object", "minProperties": 3}, "#/minProperties must be at most 1, one more than"),
    ({"type": "number", "multipleOf": 1234567}, "#/multipleOf must be a number above 0 with"),
    ({"type": "array", "minItems": -1}, "#/minItems must be an integer of at least 0, got -1"),
    ({"properties": {"a": 3}}, "#/properties/a must be an object or a boolean, got 3"),
    ({"properties": {"a": {"type": "string", "required": True}}}, "/a/required must be"),
    ({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4}, "must allow a value"),
    ({"type": "null", "enum": [1]}, "# of a JSON schema must allow a value"),
    (False, "JsonSchema must be given a dict"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "message"), REFUSED, ids=lambda case: str(case)[:50])
def test_what_no_automaton_has_is_refused_by_name(schema: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        compiled(schema)


def closed(fields: dict[str, Any], *, required: bool = False) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields) if required else []}


def names(count: int, prefix: str = "name") -> list[str]:
    return [f"{prefix} {number * 7919 % 100_003:05d}" for number in range(count)]


NESTED: Any = TEXT
for _ in range(4):
    NESTED = {"type": "array", "items": closed({"id": INT, "more": NESTED}, required=True)}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (closed({"a": {**TEXT, "maxLength": 500}, "b": {**TEXT, "maxLength": 500}}), "{}"),
        (closed(dict.fromkeys(names(60), TEXT)), '{"name 07919": "x"}'),
        (closed({name: closed(dict.fromkeys(names(12), TEXT)) for name in names(12)}), "{}"),
        (NESTED, '[{"id": 1, "more": [{"id": 2, "more": []}]}]'),
        ({"enum": names(3000, "value")}, '"value 07919"'),
    ],
    ids=["lengths", "optional", "nested optional", "lists", "enum"],
)
def test_everyday_large_schemas_compile(schema: Any, text: str) -> None:
    """An expression over 64 KiB was never compiled; sixty optional fields were refused."""
    assert is_accepted(compiled(schema), text)


def test_a_schema_that_is_too_large_is_refused_before_it_is_written() -> None:
    """2,000 optional names built an expression of 757 MB."""
    began_s = time.thread_time()
    with pytest.raises(ValueError, match="about"):
        compiled(
            closed({f"{name} with a long common beginning {name}": TEXT for name in names(2000)})
        )
    assert time.thread_time() - began_s < 5.0


def test_one_of_many_levels_takes_no_more_per_level() -> None:
    """The check that parts are apart took four times as long per level."""
    parts: dict[str, Any] = {"a11": INT, "b11": TEXT}
    for level in range(11):
        parts |= {
            f"{side}{level}": {"anyOf": [
                {"type": "object", "required": ["n"],
                 "properties": {"n": {"$ref": f"#/$defs/{side}{level + 1}"}, mark: NULL}}
                for mark in ("x", "y")
            ]}
            for side in "ab"
        }  # fmt: skip
    began_s = time.thread_time()
    with suppress(TooLargeError):
        compiled({"$defs": parts, "oneOf": [{"$ref": "#/$defs/a0"}, {"$ref": "#/$defs/b0"}]})
    assert time.thread_time() - began_s < 10.0


def test_a_part_that_is_named_many_times_is_read_once() -> None:
    """Forty levels, each of which named the next one twice, were read 2 ** 40 times."""
    parts: dict[str, Any] = {"L0": {"type": "null"}}
    for level in range(1, 40):
        ref = {"$ref": f"#/$defs/L{level - 1}"}
        parts[f"L{level}"] = {"anyOf": [ref, ref]}
    assert is_accepted(compiled({"$ref": "#/$defs/L39", "$defs": parts}), "null")
    with pytest.raises(ValueError, match="must be given JSON values alone"):
        JsonSchema({"const": float("nan")})
