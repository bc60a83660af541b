"""Parts of the JSON of requests: messages, tools, and forms of answers."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

# Types of parts that are a text, in chats and in responses, and what clients note next to it.
_TEXTS = ("text", "input_text", "output_text", "reasoning_text")
_NOTES = {"annotations", "logprobs", "parsed"}


def _check_encodable(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("must be encodable as UTF-8, without lone surrogates") from None
    return text


def _content(value: object) -> object:
    """Joins the text parts of a message."""
    if not isinstance(value, list):
        return value
    texts: list[str] = []
    for part in value:
        is_text = isinstance(part, dict) and set(part) - _NOTES == {"type", "text"}
        if not is_text or part["type"] not in _TEXTS or not isinstance(part["text"], str):
            raise ValueError('must be a text, or parts such as {"type": "text", "text": "..."}')
        texts.append(part["text"])
    return "".join(texts)


def without_nulls(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an object without its fields that are null, as if they were left out."""
    return {name: value for name, value in values.items() if value is not None}


Json: TypeAlias = dict[str, Any]
"""A JSON object."""

Text: TypeAlias = Annotated[str, AfterValidator(_check_encodable)]
Content: TypeAlias = Annotated[
    Text, BeforeValidator(_content, json_schema_input_type=str | list[dict[str, Any]])
]

ClientField: TypeAlias = Annotated[Any, Field(exclude=True)]
"""A field that clients add to answers that they join or parse, and send back."""


class Strict(BaseModel):
    """An object whose fields are all known, and have exactly their types."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class Function(BaseModel):
    """A function that the model may call; its further fields are for the chat template."""

    model_config = ConfigDict(strict=True, extra="allow")
    name: Text


class JsonFormat(Strict):
    """A JSON schema of answers."""

    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    name: Text | None = None
    description: Text | None = None
    strict: bool | None = None


class ResponseFormat(Strict):
    """The form of answers, as OpenAI names it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonFormat | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "ResponseFormat":
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("must have 'json_schema' if that is its type, and only then")
        return self


class CalledFunction(Strict):
    """The name of a function and the JSON of its arguments."""

    name: Text
    arguments: Text
    parsed_arguments: ClientField = None


class ToolCall(Strict):
    """A call in an answer."""

    id: Text
    type: Literal["function"]
    function: CalledFunction
    index: ClientField = None


class Turn(Strict):
    """A message of a chat; an answer has a content or calls."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = ""
    tool_call_id: Text | None = None
    tool_calls: list[ToolCall] | None = None
    reasoning_content: Content | None = None
    parsed: ClientField = None

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        # Clients send answers back as they came, with fields that are null or empty.
        return {name: value for name, value in values.items() if value not in (None, [])}

    @model_validator(mode="after")
    def _consistent(self) -> "Turn":
        if self.tool_calls is not None and self.role != "assistant":
            raise ValueError("must have tool_calls in a message of the assistant only")
        own = (
            {"content"}
            if self.role != "assistant"
            else {"content", "tool_calls", "reasoning_content"}
        )
        if not own & self.model_fields_set:
            raise ValueError("must have a content")
        return self

    def as_dict(self) -> dict[str, Any]:
        """Returns the message for a chat template, which reads arguments as an object.

        Raises:
            ValueError: If the arguments of a call are no JSON.
        """
        turn = self.model_dump(exclude_none=True)
        for call in turn.get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        return turn


class Tool(Strict):
    """A tool of a chat."""

    type: Literal["function"]
    function: Function


class _Named(Strict):
    name: Text


class ToolChoice(Strict):
    """The function that must be called."""

    type: Literal["function"]
    function: _Named


ToolMode: TypeAlias = Literal["none", "auto", "required"]
"""Values of `tool_choice` that name no function."""
