"""JSON schemas, choices and expressions: what they accept, and what they refuse by name."""

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

import jsonschema
import pytest
from pydantic import BaseModel, Field

from benchmarks.schemas import is_accepted
from dllm_decode.text.constraints import (
    Constraint,
    JsonSchema,
    OneOf,
    Regex,
    Vocabulary,
    compile_constraint,
    constraint_of,
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


def accepts(constraint: Constraint, text: str) -> bool:
    return is_accepted(constraint.octets(), text)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (PERSON, '{"name": "Z\\"ë", "age": -7, "email": "a.b@c.org", "tags": [], "flag": true}'),
        (PERSON, '{"name":"x","age":0,"email":"a@b.cc","tags":["a", "b.c","a"],"flag":false}'),
        ({}, '{"a": [{"b": 1.5e-3}, null, []], "c": {}}'),
        ({"type": "string", "pattern": r'^[^@]*@\S. ?["\\xz]\.(é|漢)$'}, '"ab@xy z.漢"'),
        (Model, '{"kind": "x", "score": 1.5}'),
        (Model, '{"kind": "y", "score": 3, "note": null}'),
    ],
)  # fmt: skip
def test_texts_that_a_model_would_write_are_accepted(schema: Any, text: str) -> None:
    constraint = JsonSchema(schema)
    jsonschema.validate(json.loads(text), constraint.as_dict())
    assert accepts(constraint, text)
    for wrong in (text + "}", text[:-1], text.replace(",", ",,"), text.replace("0,", "01,")):
        assert wrong == text or not accepts(constraint, wrong)


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
        ("(?<=a)b", "a look-around or a group of an unknown kind, '(?<='"),
        ("a(?!b)", "a look-around or a group of an unknown kind, '(?!b'"),
        (r"(a)\1", r"an escape that no automaton has, '\1'"),
        (r"(?<x>a)\k<x>", r"an escape that no automaton has, '\k'"),
        (r"\bword", r"an escape that no automaton has, '\b'"),
        (r"\p{L}", r"an escape that no automaton has, '\p'"),
        ("a)|(b", "a parenthesis without a partner, ')'"),
        ("(a", "a parenthesis without a partner, '('"),
        ("a**", "two repetitions in a row"),
        ("a{,3}", "bounds of another form than {n}, {n,} or {n,m}, of up to 5 digits, '{,3}'"),
        ("a{123456}", "bounds of another form than"),
        ("[b-a]", "a range in the wrong order"),
        ("[$", "an end where a part must follow in '[$'"),
        ("(" * 300 + "a" + ")" * 300, "more than 100 groups inside each other"),
        (3, "Regex must be text in UTF-8, got 3"),
        ("\ud800", "Regex must be text in UTF-8"),
    ],
)  # fmt: skip
def test_an_expression_that_no_automaton_has_is_refused(expression: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Regex(expression)


def test_anchors_at_the_ends_change_nothing() -> None:
    for expression in ("^a|bc$", r"[$^]\$\\", r"a\\$", r"^[\]^]$", "(?:^a)$", "(?P<x>b)c"):
        for text in ("a", "bc", "a\\", "$$\\", "]", "^"):
            expected = re.fullmatch(expression, text) is not None
            assert accepts(Regex(expression), text) == expected, (expression, text)


def test_whitespace_is_one_expression_of_spaces() -> None:
    """An alternative split the expression of the whole text."""
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
    assert accepts(JsonSchema(schema, whitespace=r"( |\n)?"), "[ 1 ,\n2\n]")
    for whitespace in (5, "x", ")(", r"\s*", "5", "[a]", " "):
        with pytest.raises(ValueError, match="whitespace must"):
            JsonSchema(schema, whitespace=whitespace)  # type: ignore[arg-type]


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=0, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    weight: float = Field(gt=0)


class Owner(BaseModel):
    pet: Cat | Dog = Field(discriminator="kind")


def test_a_tagged_union_of_models_is_followed() -> None:
    for text in ('{"pet": {"kind": "cat", "lives": 9}}', '{"pet": {"kind": "dog", "weight": 0.5}}'):
        assert accepts(JsonSchema(Owner), text)
        Owner.model_validate_json(text)
    for text in ('{"pet": {"kind": "cat", "lives": 10}}', '{"pet": {"kind": "dog", "weight": 0}}'):
        assert not accepts(JsonSchema(Owner), text)


@pytest.mark.parametrize("levels", [100, 300, 1000, 5000])
@pytest.mark.parametrize("keyword", ["items", "not"])
def test_a_schema_of_many_levels_compiles_or_is_refused_in_one_sentence(
    levels: int, keyword: str
) -> None:
    """A schema of 300 levels ended with a RecursionError."""
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {keyword: schema} if keyword == "not" else {"type": "array", "items": schema}
    if levels == 100:
        compile_constraint(JsonSchema(schema), VOCABULARY)
        return
    with pytest.raises(ValueError, match="JsonSchema must have at most 150 levels"):
        JsonSchema(schema)


def test_a_keyword_is_refused_by_name_below_5000_levels() -> None:
    schema: dict[str, Any] = {"unevaluatedItems": False}
    for _ in range(5000):
        schema = {"items": schema}
    with pytest.raises(
        ValueError, match=r"^#/items/.* \.\.\. .*/items/unevaluatedItems must be left"
    ):
        JsonSchema(schema)


def test_a_constraint_is_written_as_json() -> None:
    assert constraint_of({"regex": "a"}) == Regex("a")
    assert constraint_of({"choice": ["a"]}) == OneOf(["a"])
    schema = {"properties": {"a": {}}}
    assert constraint_of({"json": schema}) == JsonSchema(schema)
    assert constraint_of({"json": schema, "extra_keys": True}) == JsonSchema(
        schema, extra_keys=True
    )
    for given in ({}, {"regex": "a", "json": {}}, {"extra_keys": True}, {"regex": "a", "x": 1}, 3):
        with pytest.raises(ValueError, match="constraint must be"):
            constraint_of(given)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="extra_keys must be True or False"):
        constraint_of({"json": schema, "extra_keys": 1})


@pytest.mark.parametrize("choices", [[], "yes", ["a", 3], ["a", ""], 3])
def test_a_choice_needs_texts(choices: Any) -> None:
    with pytest.raises(ValueError, match="OneOf must be text in UTF-8"):
        OneOf(["\ud800"])
    with pytest.raises(ValueError, match="OneOf must be given a list of texts"):
        OneOf(choices)


@pytest.mark.parametrize("constraint", [Regex(".{2,30}"), OneOf(["été", "étang", "orange"])])
def test_an_automaton_has_the_fewest_states(constraint: Constraint) -> None:
    assert len(constraint.octets()) == len(constraint.octets().smallest())
    # `.{0,1800}` has 18,001 states, of 20,000.
    assert len(Regex(".{0,1800}").octets()) == 18_001
