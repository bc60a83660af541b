"""Forms of answers: the constraints that requests ask for, and those of forced calls."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from dllm_decode.serve.errors import RefusedError
from dllm_decode.serve.message_readers import call_head
from dllm_decode.serve.request_fields import Chat, Completion
from dllm_decode.text.constraints import Constraint, JsonSchema, constraint_of
from dllm_decode.text.constraints.machines.octets import Octets, in_order, literal, union

_NO_ARGUMENTS = {"type": "object", "additionalProperties": False}
# Parts of the schema of a function without arguments, next to notes for people.
_EMPTY = {"type": "object", "properties": {}, "required": []}
_NOTES = {"$schema", "title", "description"}


class Form(NamedTuple):
    """A constraint that a request asks for.

    Attributes:
        param: The field that asks.
        source: The name and the JSON of the field.
        read: Returns the constraint; this may take a moment.
    """

    param: str
    source: str
    read: Callable[[], Constraint]


def form_of(asked: Completion | Chat) -> Form | None:
    """Returns the constraint of a request; `None` if it asks for none."""
    schema = partial(JsonSchema, extra_keys=bool(asked.extra_keys))
    if asked.forced:
        tools = [tool.model_dump() for tool in asked.forced]
        return _form("tools", tools, partial(_calls_of, schema))
    if asked.structured_outputs is not None:
        outputs = asked.structured_outputs
        if "json" not in outputs:
            _require_no_keys(asked)
        elif asked.extra_keys is not None:
            outputs = {"extra_keys": asked.extra_keys, **outputs}
        return _form("structured_outputs", outputs, constraint_of)
    response_format = asked.response_format
    if response_format is None or response_format.type == "text":
        _require_no_keys(asked)
        return None
    if response_format.json_schema is None:
        return _form("response_format", {"type": "object"}, schema)
    return _form("response_format", response_format.json_schema.schema_, schema)


def _require_no_keys(asked: Completion | Chat) -> None:
    """Raises RefusedError if an answer that is no JSON of a form is to have further keys."""
    if asked.extra_keys:
        message = "'extra_keys' must be left out of a request without a JSON form."
        raise RefusedError(400, message, param="extra_keys")


def _form(param: str, value: Any, read: Callable[[Any], Constraint]) -> Form:
    # Another process reads the value.
    return Form(param, f"{param} {read!r} {json.dumps(value)}", partial(read, value))


@dataclass(frozen=True)
class Calls(Constraint):
    """Answers that are the JSON of one call: the name of a function, and its arguments.

    Attributes:
        functions: Schema of each function's arguments, by the function's name.
    """

    functions: Mapping[str, JsonSchema]

    def octets(self) -> Octets:
        return union(
            in_order(literal(call_head(name)), schema.octets(), literal("}"))
            for name, schema in self.functions.items()
        ).smallest()


def _calls_of(schema_of: Callable[[Any], JsonSchema], functions: list[dict[str, Any]]) -> Calls:
    schemas = {}
    for function in functions:
        schema = function.get("parameters")
        try:
            is_empty = schema is None or _is_empty(schema)
            schemas[function["name"]] = schema_of(_NO_ARGUMENTS if is_empty else schema)
        except ValueError as error:
            raise ValueError(f"The parameters of {function['name']!r}: {error}") from None
    return Calls(schemas)


def _is_empty(schema: Any) -> bool:
    """Returns True if a schema of arguments names none, as clients write it."""
    return isinstance(schema, dict) and all(
        name in _NOTES or (name, part) in _EMPTY.items() for name, part in schema.items()
    )
