"""JSON schemas, choices and expressions: what they accept, and what they refuse by name."""

import json
import random
import re
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import jsonschema
import pytest
from pydantic import BaseModel, Field

from dllm_decode.core.language import EOS_CLASS, Automaton
from dllm_decode.text.constraints import (
    Constraint,
    JsonSchema,
    OneOf,
    Regex,
    Vocabulary,
    compile_constraint,
    require_length,
)

# Every byte is a token, after an EOS.
TEXTS = [None, *(bytes([byte]) for byte in range(256))]
VOCABULARY = Vocabulary.of(TEXTS, TEXTS, (0,))

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "age": {"type": "integer"},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"enum": ["a", "b.c", "d"]}, "maxItems": 3},
        "flag": {"type": "boolean"},
    },
    "required": ["name", "age", "email", "tags", "flag"],
}


class Model(BaseModel):
    kind: Literal["x", "y"]
    score: float
    note: str | None = None


@dataclass
class Pair:
    left: int
    right: list[bool]


def walks(automaton: Automaton, number: int, *, most: int = 80) -> list[str]:
    """Returns random texts: a walk along random edges, then the shortest way to an end."""
    draw = random.Random(0)
    edges_from: dict[int, list[tuple[int, int]]] = {}
    for source, label, target in zip(
        automaton.sources.tolist(),
        automaton.labels.tolist(),
        automaton.targets.tolist(),
        strict=True,
    ):
        if label != EOS_CLASS:
            edges_from.setdefault(source, []).append((label, target))
    tokens_of: dict[int, list[int]] = {}
    for token, label in enumerate(automaton.classes.tolist()):
        tokens_of.setdefault(label, []).append(token)
    distances = automaton.distances.tolist()
    texts = []
    for _ in range(number):
        state, text, length = 0, bytearray(), draw.randint(0, most)
        while length > len(text) or distances[state]:
            edges = edges_from.get(state)
            if not edges:
                break
            if length <= len(text):
                edges = [min(edges, key=lambda edge: distances[edge[1]])]
            label, state = draw.choice(edges)
            text += TEXTS[draw.choice(tokens_of[label])] or b""
        texts.append(text.decode())
    return texts


def accepts(constraint: Constraint, text: str) -> bool:
    automaton = compile_constraint(constraint, VOCABULARY)
    state = 0
    for byte in text.encode():
        label = automaton.classes[byte + 1]
        taken = (automaton.sources == state) & (automaton.labels == label)
        if not taken.any():
            return False
        state = int(automaton.targets[taken])
    return int(automaton.distances[state]) == 0


SCHEMAS: dict[str, Any] = {
    "person": PERSON,
    "any": {},
    "object": {"type": "object"},
    "optional": {
        "type": "object",
        "properties": {name: {"type": "integer"} for name in "abc"},
        "required": ["b"],
    },
    "all optional": {"type": "object", "properties": {name: {"type": "null"} for name in "abc"}},
    "map": {"type": "object", "additionalProperties": {"type": ["number", "null"]}},
    "closed": {"type": "object", "additionalProperties": False},
    "tuple": {"type": "array", "prefixItems": [{"const": 1}, {"type": "string"}]},
    "bounded": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    "no items": {"type": "array", "maxItems": 0},
    "pattern": {"type": "string", "pattern": r'^[^@]*@\S.\s?["\\xz]\.(é|漢)$'},
    "length": {"type": "string", "minLength": 2, "maxLength": 4},
    "values": {"enum": ["a|b", 1, 2.5, None, True, {"x": [1, {"y": []}]}, 'q"\\\n']},
    "typed values": {"type": ["integer", "null"], "enum": ["a", 1, None]},
    "either": {
        "anyOf": [{"type": "integer"}, {"$ref": "#/$defs/No"}],
        "$defs": {"No": {"type": "null"}},
    },
    "date": {"type": "string", "format": "date-time"},
    "uri": {"type": "string", "format": "uri"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "uuid": {"type": "string", "format": "uuid"},
    "model": Model.model_json_schema(),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_text_of_a_schema_is_valid(name: str) -> None:
    schema = SCHEMAS[name]
    automaton = compile_constraint(JsonSchema(schema, depth=2), VOCABULARY)
    texts = walks(automaton, 150)
    validator = jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    for text in texts:
        validator.validate(json.loads(text))
    assert len(set(texts)) >= min(150, 2 if name in ("closed", "no items") else 3) - 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "person",
            '{"name": "Zoë \\"Q\\"", "age": -7, "email": "a.b@c.org", "tags": [], "flag": true}',
        ),
        ("person", '{"name":"x","age":0,"email":"a@b.cc","tags":["a", "b.c","a"],"flag":false}'),
        ("any", '{"a": [{"b": 1.5e-3}, null, []], "c": {}}'),
        ("optional", '{"b": 2}'),
        ("optional", '{"a": 1, "b": 2, "c": 3}'),
        ("optional", '{"b": 2, "c": 3}'),
        ("all optional", "{}"),
        ("all optional", '{"a": null, "c": null}'),
        ("all optional", '{"c": null}'),
        ("map", '{"x": 1, "y": null}'),
        ("pattern", '"ab@xy z.漢"'),
        ("values", '"q\\"\\\\\\n"'),
        ("values", '{"x": [1, {"y": []}]}'),
        ("model", '{"kind": "x", "score": 1.5}'),
        ("model", '{"kind": "y", "score": 3, "note": null}'),
    ],
)  # fmt: skip
def test_texts_that_a_model_would_write_are_accepted(name: str, text: str) -> None:
    json.loads(text)
    schema = SCHEMAS[name]
    if name == "pattern":
        schema = {**schema, "pattern": schema["pattern"].replace(r'["\\xz]', "z")}
    assert accepts(JsonSchema(schema), text)
    assert not accepts(JsonSchema(schema), text + "}")
    assert not accepts(JsonSchema(schema), text[:-1])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("optional", '{"a": 1}'),
        ("optional", '{"b": 1, "b": 2}'),
        ("optional", '{"b": 1,}'),
        ("length", '"a"'),
        ("length", '"abcde"'),
        ("bounded", "[true]"),
        ("typed values", '"a"'),
        ("person", '{"name":"","age":0,"email":"a@b.cc","tags":[],"flag":false}'),
        ("person", '{"name":"x","age":01,"email":"a@b.cc","tags":[],"flag":false}'),
    ],
)
def test_texts_that_are_not_valid_are_not_accepted(name: str, text: str) -> None:
    assert not accepts(JsonSchema(SCHEMAS[name]), text)


def test_a_schema_may_be_a_model_or_a_dataclass() -> None:
    assert accepts(JsonSchema(Model), '{"kind": "x", "score": 1}')
    assert JsonSchema(Model).digest == JsonSchema(Model.model_json_schema()).digest
    assert accepts(JsonSchema(Pair), '{"left": 1, "right": [true, false]}')
    assert not accepts(JsonSchema(Pair), '{"left": 1}')


def test_an_open_shape_has_as_many_levels_as_depth_says() -> None:
    for depth, text in enumerate(["{}", "[{}]", '[{"a": []}]']):
        assert accepts(JsonSchema({}, depth=depth + 1), text)
        assert not accepts(JsonSchema({}, depth=depth), text)


def test_constraints_are_values() -> None:
    assert Regex("a+") == Regex("a+")
    assert eval(repr(Regex("a+"))) == Regex("a+")
    assert OneOf(["a", "b"]) == eval(repr(OneOf(["a", "b"])))
    assert JsonSchema(PERSON) == eval(repr(JsonSchema(PERSON)))
    assert len({Regex("a").digest, OneOf(["a"]).digest, OneOf(["a", "b"]).digest}) == 3
    assert hash(JsonSchema(PERSON)) == hash(JsonSchema(dict(PERSON)))


def test_choices_are_texts_not_expressions() -> None:
    texts = ["a.b", "a|b", "(", "[x]", "^$", "\\d", "é #&~-", "{1}"]
    assert all(accepts(OneOf(texts), text) for text in texts)
    assert not any(accepts(OneOf(texts), text) for text in ["axb", "a", "b", "1", ""])


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("(?<=a)b", "a look-behind, '(?<='"),
        ("a(?!b)", "a look-ahead, '(?!'"),
        (r"(a)\1", r"a back reference, '\\1'"),
        ("(?P<x>a)(?P=x)", "a back reference, '(?P='"),
        ("a$|^b", "an anchor, '$'"),
        (r"\bword", r"an anchor, '\\b'"),
        ("a)|(b", "must have a partner for each parenthesis, got 'a)|(b'"),
        ("(a", "must have a partner for each parenthesis"),
        (3, "Regex must be given a text, got 3"),
    ],
)
def test_an_expression_that_no_automaton_has_is_refused(expression: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Regex(expression)


def test_integers_within_bounds_are_those_that_are_matched() -> None:
    bounds = (None, -1000, -105, -99, -10, -9, -1, 0, 1, 7, 10, 99, 100, 1000, 1203)
    values = [*range(-1300, 1300), 10**6, -(10**6)]
    for least, most in product(bounds, bounds):
        if least is not None and most is not None and least > most:
            continue
        schema = {"type": "integer", "minimum": least, "maximum": most}
        fields = {name: bound for name, bound in schema.items() if bound is not None}
        expression = re.compile(JsonSchema(fields).pattern())
        for value in values:
            expected = (least is None or value >= least) and (most is None or value <= most)
            assert (expression.fullmatch(str(value)) is not None) == expected, (fields, value)
    for text in ("007", "-0", "+1", "1.0"):
        assert not re.fullmatch(JsonSchema({"type": "integer", "minimum": -5}).pattern(), text)
    closed = JsonSchema({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 4})
    assert [n for n in range(9) if re.fullmatch(closed.pattern(), str(n))] == [2, 3]


def test_decimals_within_bounds_are_those_that_are_matched() -> None:
    bounds = (None, -12, -1, 0, 1, 5, 20)
    parts = ("", ".0", ".00", ".5", ".07", ".999")
    texts = [f"{integer}{part}" for integer in range(-22, 23) for part in parts] + ["-0.5", "-0.01"]
    names = product(("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
    for least, most, (low, high) in product(bounds, bounds, names):
        limits = {name: end for name, end in ((low, least), (high, most)) if end is not None}
        schema = {"type": "number", **limits}
        validator = jsonschema.Draft202012Validator(schema)
        valid = {text for text in texts if validator.is_valid(json.loads(text))}
        if not valid:
            with pytest.raises(ValueError, match="# must allow a number"):
                JsonSchema(schema).pattern()
            continue
        expression = re.compile(JsonSchema(schema).pattern())
        assert {text for text in texts if expression.fullmatch(text)} == valid, schema


def test_one_of_parts_that_are_apart_is_any_of_them() -> None:
    shapes = [
        {"properties": {"kind": {"const": kind}, "n": {"type": "integer"}}, "required": ["kind"],
         "type": "object"}
        for kind in ("a", "b")
    ]  # fmt: skip
    refs = [{"$ref": "#/$defs/A"}, {"allOf": [{"$ref": "#/$defs/B"}]}]
    schema = {
        "$defs": dict(zip("AB", shapes, strict=True)),
        "oneOf": [*refs, {"type": ["string", "integer"]}, {"enum": [1.5, None]}],
        "discriminator": {"propertyName": "kind"},
    }
    expression, validator = JsonSchema(schema).pattern(), jsonschema.Draft202012Validator(schema)
    for text in ('{"kind": "a"}', '{"kind": "b", "n": 3}', '"x"', "12", "1.5", "null"):
        assert re.fullmatch(expression, text)
        assert validator.is_valid(json.loads(text))
    for text in ('{"kind": "c"}', '{"n": 1}', "2.5", "true", "[]"):
        assert not re.fullmatch(expression, text)
        assert not validator.is_valid(json.loads(text))


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=0, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    weight: float = Field(gt=0)


class Owner(BaseModel):
    pet: Cat | Dog = Field(discriminator="kind")


def test_a_tagged_union_of_models_is_followed() -> None:
    expression = JsonSchema(Owner).pattern()
    for text in ('{"pet": {"kind": "cat", "lives": 9}}', '{"pet": {"kind": "dog", "weight": 0.5}}'):
        assert re.fullmatch(expression, text)
        Owner.model_validate_json(text)
    for text in (
        '{"pet": {"kind": "cat", "lives": 10}}',
        '{"pet": {"kind": "dog", "weight": 0.0}}',
    ):
        assert not re.fullmatch(expression, text)


@pytest.mark.parametrize(
    ("pattern", "valid", "invalid"),
    [
        (r'a\"?b', '"ab"', '"a"b"'), ("a\n?b", '"ab"', '"a\nb"'), ("a\\\t?b", '"ab"', '"a\tb"'),
        (r"\u0041", '"A"', '"u0041"'), (r"\pL\.", '"a."', '"1."'), (r"\U00000041", '"A"', '"B"'),
    ],
)  # fmt: skip
def test_a_pattern_never_lets_a_text_through_that_json_must_escape(
    pattern: str, valid: str, invalid: str
) -> None:
    """An escaped quote and a line end gave texts that are not JSON; \\u0041 was refused."""
    constraint = JsonSchema({"type": "string", "pattern": pattern})
    assert accepts(constraint, valid)
    assert not accepts(constraint, invalid)


def test_whitespace_is_one_expression_of_spaces() -> None:
    """An alternative split the expression of the whole text."""
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
    assert accepts(JsonSchema(schema, whitespace=r" |\n"), "[ 1 ,\n2\n]")
    for whitespace in (5, "x", ")(", r"\s*", "5", "[a]"):
        with pytest.raises(ValueError, match="whitespace must"):
            JsonSchema(schema, whitespace=whitespace)  # type: ignore[arg-type]


def test_a_text_that_is_no_utf8_is_refused() -> None:
    for constraint in (Regex("\ud800"), OneOf(["\ud800"])):
        with pytest.raises(ValueError, match="must be text in UTF-8"):
            compile_constraint(constraint, VOCABULARY)


def test_anchors_at_the_ends_change_nothing() -> None:
    for expression in ("^a|bc$", r"[$^]\$\\", r"a\\$", "^[]^]$"):
        for text in ("a", "bc", "a\\", "$$\\", "]", "^"):
            expected = re.fullmatch(expression, text) is not None
            assert accepts(Regex(expression), text) == expected, (expression, text)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (3, "JsonSchema must be given a dict, a pydantic model or a dataclass, got 3"),
        ({"const": float("nan")}, "JsonSchema must be given JSON values alone"),
        ({"type": "text"}, "#/type must be one of null, boolean"),
        ({"type": "number", "minimum": 0.5}, "#/minimum must be an integer of at most"),
        ({"type": "number", "minimum": 3, "exclusiveMaximum": 3}, "# must allow a number, got"),
        ({"type": "integer", "minimum": 0.5}, "#/minimum must be an integer of at most"),
        (
            {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4},
            "# must allow an integer, got",
        ),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "#/oneOf must have parts that no"),
        (
            {"oneOf": [{"const": 1}, {"anyOf": [{"type": "null"}, {"enum": [0, 1]}]}]},
            "#/oneOf must have parts that no value follows both, got 0 and 1",
        ),
        (
            {"oneOf": [{"properties": {"a": {"const": 1}}}, {"properties": {"a": {"const": 2}}}]},
            "#/oneOf must have parts that no value follows both",
        ),
        ({"allOf": [{}, {}]}, "#/allOf must have one part, got 2"),
        (
            {"type": "object", "properties": {"a": {"items": {"not": {}}}}},
            "#/properties/a/items/not of a JSON schema must be left out",
        ),
        ({"anyOf": [{"type": "null"}, {"allOf": []}]}, "#/anyOf/1/allOf must be a list that is"),
        ({"anyOf": []}, "#/anyOf must be a list that is not empty"),
        ({"type": "array", "uniqueItems": True}, "#/uniqueItems of a JSON schema must be left out"),
        ({"$ref": "#/$defs/No"}, "#/$ref must name a part of the schema"),
        (
            {"$ref": "#/$defs/A", "$defs": {"A": {"items": {"$ref": "#/$defs/A"}}}},
            "#/$defs/A/items/$ref must not lead back to itself",
        ),
        ({"type": "object", "required": ["a"]}, "#/required must list properties, got ['a']"),
        ({"type": "string", "format": "color"}, "#/format must be one of date"),
        ({"type": "string", "format": "date", "minLength": 3}, "# of a JSON schema must have one"),
        ({"type": "string", "pattern": "(?=a)"}, "#/pattern must have no look-around"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "#/maxLength must be at least"),
        ({"type": "array", "minItems": -1}, "#/minItems must be an integer of at least 0, got -1"),
        ({"properties": {"a/b~": {"not": {}}}}, "#/properties/a~1b~0/not of a JSON schema"),
        ({"properties": {"a": 3}}, "#/properties/a of a JSON schema must be an object, got 3"),
        ({"type": "null", "enum": [1]}, "#/enum must have a value of the type"),
    ],
)  # fmt: skip
def test_what_a_schema_asks_beyond_the_subset_is_named(schema: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        JsonSchema(schema)


def test_a_schema_whose_parts_double_is_refused_at_once() -> None:
    parts: dict[str, Any] = {"L0": {"type": "string"}}
    for level in range(1, 40):
        ref = {"$ref": f"#/$defs/L{level - 1}"}
        parts[f"L{level}"] = {"type": "array", "prefixItems": [ref, ref]}
    with pytest.raises(ValueError, match="must have an expression of at most"):
        JsonSchema({"$ref": "#/$defs/L39", "$defs": parts})


def test_a_part_that_is_named_many_times_is_read_once() -> None:
    """Forty levels, each of which named the next one twice, were read 2 ** 40 times."""
    parts: dict[str, Any] = {"L0": {"type": "null"}}
    for level in range(1, 40):
        ref = {"$ref": f"#/$defs/L{level - 1}"}
        parts[f"L{level}"] = {"anyOf": [ref, ref]}
    assert accepts(JsonSchema({"$ref": "#/$defs/L39", "$defs": parts}), "null")


@pytest.mark.parametrize("choices", [[], "yes", ["a", 3], ["a", ""], 3])
def test_a_choice_needs_texts(choices: Any) -> None:
    with pytest.raises(ValueError, match="OneOf must be given a list of texts"):
        OneOf(choices)


def test_an_answer_that_is_too_short_is_refused_with_the_least_length() -> None:
    constraint = OneOf(["maybe", "never"])
    automaton = compile_constraint(constraint, VOCABULARY)
    require_length(constraint, automaton, 5)
    with pytest.raises(ValueError, match=r"gen_length must be at least 5, .* got 4"):
        require_length(constraint, automaton, 4)
    with pytest.raises(ValueError, match="OneOf must have a text that agrees with the given"):
        require_length(constraint, automaton, 9, template=[ord("x") + 1])
