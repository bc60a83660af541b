"""The constraints of a request: which texts an answer may have."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from hashlib import sha256
from typing import Any, cast

import msgspec

from dllm_decode.text.constraints.expressions import literal, whole_text
from dllm_decode.text.constraints.json_schema import expression_of
from samplers.checks import shown


class Constraint(ABC):
    """A set of texts; the part of an answer before its EOS must be one of them."""

    @abstractmethod
    def pattern(self) -> str:
        """Returns a regular expression, without anchors, that matches exactly these texts.

        Raises:
            ValueError: If there is none.
        """

    @property
    def label(self) -> str:
        """Names the constraint in messages."""
        return type(self).__name__

    @property
    def texts(self) -> tuple[str, ...] | None:
        """The texts, if they are listed; `None` otherwise."""
        return None

    @property
    def has_null(self) -> bool:
        """True if a text may have a null character."""
        return True

    @property
    def digest(self) -> str:
        """SHA-256 of the constraint, the same in every process."""
        return sha256(repr(self).encode()).hexdigest()


@dataclass(frozen=True)
class Regex(Constraint):
    r"""Answers that match a regular expression from end to end.

    The syntax is that of Rust's `regex`: as in Python, without look-around, back references and
    anchors; `&&`, `--` and `~~` in a class are operations on sets. A dot is any character but a
    new line.

    Attributes:
        expression: The expression, such as `\d{4}-\d{2}-\d{2}`.
    """

    expression: str

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str):
            raise ValueError(f"Regex must be given a text, got {shown(self.expression)}.")
        self.pattern()

    def pattern(self) -> str:
        return whole_text(self.expression, owner="Regex")


@dataclass(frozen=True)
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

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"OneOf({list(self.choices)!r})"

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(self.choices)

    def pattern(self) -> str:
        return "|".join(literal(text) for text in self.choices)


@dataclass(frozen=True, eq=False)
class JsonSchema(Constraint):
    """Answers that are JSON texts of a schema.

    Objects have their properties in the schema's order, and no others. An object or array whose
    content the schema leaves open has JSON values of any shape, nested up to `depth`, since a
    regular language cannot count further. Bounds of numbers are integers, such numbers have no
    exponents, the parts of `oneOf` have no value in common, and `allOf` has one part.

    Attributes:
        schema: A JSON schema as a dict, a pydantic model or a dataclass.
        depth: Most levels of nesting where the shape is open; 0: texts, numbers, booleans, null.
        whitespace: Expression of the space that may be at each place where JSON allows any.
    """

    schema: Any
    depth: int = 3
    whitespace: str = " ?"

    def __post_init__(self) -> None:
        if isinstance(self.depth, bool) or not isinstance(self.depth, int) or self.depth < 0:
            raise ValueError(f"depth must be an integer of at least 0, got {shown(self.depth)}.")
        self.pattern()

    def __eq__(self, other: object) -> bool:
        # Dicts with the same properties in another order are equal, but their texts are not.
        return isinstance(other, JsonSchema) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"JsonSchema({self.as_dict()!r}, depth={self.depth}, whitespace={self.whitespace!r})"

    @property
    def has_null(self) -> bool:
        # JSON must escape a null character.
        return "\0" in self.pattern()

    def as_dict(self) -> dict[str, Any]:
        """Returns the schema as a dict.

        Raises:
            ValueError: If it cannot be written as a dict of JSON values.
        """
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
        try:
            plain: dict[str, Any] = json.loads(json.dumps(schema, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise ValueError(f"JsonSchema must be given JSON values alone, got {error}.") from None
        return plain

    def pattern(self) -> str:
        return expression_of(self.as_dict(), depth=self.depth, whitespace=self.whitespace)


def constraint_of(given: Mapping[str, Any]) -> Constraint:
    """Returns a constraint written as JSON: `{"regex": ...}`, `{"json": ...}` or `{"choice": ...}`.

    Raises:
        ValueError: If it is written otherwise, or there is no such constraint.
    """
    kinds: dict[str, Callable[[Any], Constraint]] = {
        "regex": Regex,
        "json": JsonSchema,
        "choice": OneOf,
    }
    if not isinstance(given, Mapping) or len(given) != 1 or not given.keys() <= kinds.keys():
        raise ValueError(
            'constraint must be {"regex": TEXT}, {"json": SCHEMA} or {"choice": [TEXT, ...]}, got '
            f"{shown(given)}."
        )
    ((name, value),) = given.items()
    return kinds[name](value)
