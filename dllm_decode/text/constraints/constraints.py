"""The constraints of a request: which texts an answer may have."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any, cast

import msgspec

from dllm_decode.text.constraints.machines.ecma import ExpressionError, full_match, parse
from dllm_decode.text.constraints.machines.languages import words
from dllm_decode.text.constraints.machines.octets import Octets, written
from dllm_decode.text.constraints.schemas.keywords import read_schema
from dllm_decode.text.constraints.schemas.writer import compile_schema
from samplers.checks import shown

# Deeper lists and dicts cannot be read within Python's bound of nested calls.
_MAX_LEVELS = 150


class Constraint(ABC):
    """A set of texts; the part of an answer before its EOS must be one of them."""

    @abstractmethod
    def octets(self) -> Octets:
        """Returns the automaton of these texts over bytes, with the fewest states.

        Raises:
            ValueError: If there is none.
            TooLargeError: If there are too many states, or no processor time is left.
        """

    def __eq__(self, other: object) -> bool:
        # Dicts with the same members in another order are equal, but the texts of such schemas are
        # not; and a list of choices may be a tuple.
        return isinstance(other, Constraint) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def label(self) -> str:
        """Names the constraint in messages."""
        return type(self).__name__

    @property
    def texts(self) -> tuple[str, ...] | None:
        """The texts, if they are listed; `None` otherwise."""
        return None

    @property
    def digest(self) -> str:
        """SHA-256 of the constraint, the same in every process."""
        return sha256(repr(self).encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class Regex(Constraint):
    r"""Answers that match a regular expression from end to end.

    The syntax is that of ECMA-262 (JavaScript) with its flag u, as for `pattern` in a JSON schema:
    `\d`, `\w` and `\s` are its classes, and a dot is any character but a line end. There are no
    look-arounds, `\b`, `\p{...}` and back references. docs/structured.md lists what differs from
    Python's `re`.

    Attributes:
        expression: The expression, such as `\d{4}-\d{2}-\d{2}`.
    """

    expression: str

    def __post_init__(self) -> None:
        _require_expression(self.expression, owner="Regex")

    def octets(self) -> Octets:
        return written(full_match(self.expression), is_quoted=False).smallest()


@dataclass(frozen=True, eq=False)
class OneOf(Constraint):
    """Answers that are one of some texts.

    Attributes:
        choices: The texts, as a list or a tuple; none of them is empty.
    """

    choices: Sequence[str]

    def __post_init__(self) -> None:
        choices: object = self.choices
        is_listed = isinstance(choices, Sequence) and not isinstance(choices, str)
        if (
            not is_listed
            or not self.choices
            or not all(isinstance(text, str) and text for text in self.choices)
        ):
            raise ValueError(
                f"OneOf must be given a list of texts that are not empty, got {shown(choices)}."
            )
        for text in self.choices:
            _require_utf8(text, owner="OneOf")

    def __repr__(self) -> str:
        return f"OneOf({list(self.choices)!r})"

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(self.choices)

    def octets(self) -> Octets:
        return written(words(self.choices), is_quoted=False).smallest()


@dataclass(frozen=True, eq=False)
class JsonSchema(Constraint):
    """Answers that are JSON texts of a schema.

    Each value is written in one way: objects have their properties in the schema's order, then
    others, integers have no fraction, and characters are escaped only if they must be. No key is
    invented: an object whose schema lists `properties` has no others, unless the schema asks for
    them. docs/structured.md has the keywords and the bounds.

    Attributes:
        schema: A JSON schema as a dict, a pydantic model or a dataclass.
        depth: Most levels of nesting where the shape is open; 0: texts, numbers, booleans, null.
        whitespace: Expression of the space that may be at each place where JSON allows any.
        extra_keys: Objects may have all keys that the standard allows, listed or not.
    """

    schema: Any
    depth: int = 3
    whitespace: str = " ?"
    extra_keys: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.depth, bool) or not isinstance(self.depth, int) or self.depth < 0:
            raise ValueError(f"depth must be an integer of at least 0, got {shown(self.depth)}.")
        if not isinstance(self.extra_keys, bool):
            raise ValueError(f"extra_keys must be True or False, got {shown(self.extra_keys)}.")
        self._space()
        schema = self._given()
        read_schema(schema)
        _require_levels(schema)
        self.as_dict()

    def __repr__(self) -> str:
        fields = f"depth={self.depth}, whitespace={self.whitespace!r}, extra_keys={self.extra_keys}"
        return f"JsonSchema({self.as_dict()!r}, {fields})"

    def as_dict(self) -> dict[str, Any]:
        """Returns the schema as a dict.

        Raises:
            ValueError: If it cannot be written as a dict of JSON values.
        """
        try:
            plain: dict[str, Any] = json.loads(json.dumps(self._given(), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise ValueError(f"JsonSchema must be given JSON values alone, got {error}.") from None
        return plain

    def octets(self) -> Octets:
        # The parts of a dict of JSON values are told apart by their identity.
        document = read_schema(self.as_dict())
        return compile_schema(
            document, depth=self.depth, space=self._space(), extra_keys=self.extra_keys
        )

    def _given(self) -> dict[str, Any]:
        schema = self.schema
        if isinstance(schema, type) and is_dataclass(schema):
            schema = msgspec.json.schema(schema)
        elif isinstance(schema, type) and callable(getattr(schema, "model_json_schema", None)):
            schema = cast(Any, schema).model_json_schema()
        if not isinstance(schema, dict):
            raise ValueError(
                "JsonSchema must be given a dict, a pydantic model or a dataclass, got "
                f"{shown(schema)}."
            )
        return schema

    def _space(self) -> Octets:
        """Returns the white space that may separate parts."""
        _require_expression(self.whitespace, owner="whitespace")
        return _space_of(self.whitespace)


@lru_cache(maxsize=8)
def _space_of(expression: str) -> Octets:
    """Returns the texts of an expression; raises ValueError unless they may separate JSON parts."""
    space = full_match(expression)
    if space.has("") and (space - full_match(r"[ \t\n\r]*")).is_empty:
        return written(space, is_quoted=False)
    raise ValueError(
        "whitespace must be an expression of spaces, tabs and line ends, as JSON allows, or of "
        f"nothing, such as ' ?' or '[ \\n]*', got {shown(expression)}."
    )


def _require_utf8(text: str, *, owner: str) -> None:
    """Raises ValueError unless a value is a text with bytes, which a lone surrogate has not."""
    try:
        text.encode()
    except (AttributeError, UnicodeEncodeError):
        raise ValueError(f"{owner} must be text in UTF-8, got {shown(text)}.") from None


def _require_expression(expression: str, *, owner: str) -> None:
    """Raises ValueError unless a text is a regular expression that an automaton can follow."""
    _require_utf8(expression, owner=owner)
    try:
        parse(expression)
    except ExpressionError as error:
        raise ValueError(
            f"{owner} must be an expression that an automaton can follow, got {error} in "
            f"{shown(expression)}."
        ) from None


def _require_levels(schema: dict[str, Any]) -> None:
    """Raises ValueError if lists and dicts are nested too deeply, without nested calls."""
    level: list[Any] = [schema]
    for _ in range(_MAX_LEVELS):
        values = (part.values() if isinstance(part, dict) else part for part in level)
        inner = (value for part in values for value in part if isinstance(value, dict | list))
        level = list({id(value): value for value in inner}.values())
    if not level:
        return
    raise ValueError(
        f"JsonSchema must have at most {_MAX_LEVELS} levels of objects and lists, got more. Give "
        "parts a name in $defs, and refer to them by $ref."
    )


def constraint_of(given: Mapping[str, Any]) -> Constraint:
    """Returns a constraint written as JSON: `{"regex": ...}`, `{"json": ...}` or `{"choice": ...}`.

    `"extra_keys": true` may be next to `"json"`.

    Raises:
        ValueError: If it is written otherwise, or there is no such constraint.
    """
    match given:
        case {"regex": expression, **rest} if not rest:
            return Regex(expression)
        case {"json": schema, **rest} if rest.keys() <= {"extra_keys"}:
            return JsonSchema(schema, **rest)
        case {"choice": choices, **rest} if not rest:
            return OneOf(choices)
    raise ValueError(
        'constraint must be {"regex": TEXT}, {"json": SCHEMA} or {"choice": [TEXT, ...]}, got '
        f"{shown(given)}."
    )
