"""OpenAI's responses: chats whose messages, reasoning, calls and results are items of a list."""

import secrets
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from dllm_decode.serve.errors import RefusedError
from dllm_decode.serve.exchange import Exchange, event
from dllm_decode.serve.request_fields import MAX_TOOLS, AnswerFields, Chat
from dllm_decode.serve.request_parts import (
    ClientField,
    Content,
    Json,
    Strict,
    Text,
    ToolMode,
    without_nulls,
)

# The names that fields of a chat have in a request for a response.
_NAMES = {
    "messages": "input", "max_tokens": "max_output_tokens", "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}  # fmt: skip


class Item(Strict):
    """An item of a chat."""

    id: ClientField = None
    status: ClientField = None
    phase: ClientField = None

    def turn(self) -> Json:
        """Returns the item as a message of a chat."""
        raise NotImplementedError


class Message(Item):
    """A text that somebody says."""

    type: Literal["message"]
    role: Literal["system", "developer", "user", "assistant"]
    content: Content

    def turn(self) -> Json:
        return {"role": self.role, "content": self.content}


class Thought(Item):
    """The reasoning of the model."""

    type: Literal["reasoning"]
    content: Content = ""
    summary: ClientField = None
    encrypted_content: ClientField = None

    def turn(self) -> Json:
        return {"role": "assistant", "reasoning_content": self.content}


class Call(Item):
    """A call that the model made."""

    type: Literal["function_call"]
    call_id: Text
    name: Text
    arguments: Text
    parsed_arguments: ClientField = None

    def turn(self) -> Json:
        function = {"name": self.name, "arguments": self.arguments}
        call = {"id": self.call_id, "type": "function", "function": function}
        return {"role": "assistant", "tool_calls": [call]}


class CallResult(Item):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: Text
    output: Content

    def turn(self) -> Json:
        return {"role": "tool", "tool_call_id": self.call_id, "content": self.output}


def _items_of(value: object) -> object:
    """Returns a text as a message, and each item with its type, which messages may leave out."""
    items = [{"role": "user", "content": value}] if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ValueError("must be a text or a list of items")
    return [{"type": "message", **without_nulls(item)} for item in items]


def _turns(items: Iterable[Item]) -> list[Json]:
    """Returns items as messages of a chat: what the assistant says and calls is one message."""
    turns: list[Json] = []
    for item in items:
        turn, last = item.turn(), turns[-1] if turns else {}
        is_same = turn["role"] == "assistant" == last.get("role")
        if is_same and "tool_calls" in turn:
            last.setdefault("tool_calls", []).extend(turn["tool_calls"])
        elif is_same and turn.keys() & last.keys() == {"role"}:
            last.update(turn)
        else:
            turns.append(turn)
    return turns


def _chat_form(value: BaseModel) -> Json:
    """Returns an object as chats have it: its fields but for the type, by the type's name."""
    rest = without_nulls(value.model_dump(by_alias=True))
    kind = rest.pop("type")
    return {"type": kind, kind: rest} if rest else {"type": kind}


class TextFormat(Strict):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    name: Text | None = None
    description: Text | None = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "TextFormat":
        if (self.type == "json_schema") != (self.schema_ is not None):
            raise ValueError("must have a 'schema' if its type is 'json_schema', and only then")
        names = {"name": self.name, "description": self.description, "strict": self.strict}
        given = [name for name, value in names.items() if value is not None]
        if self.type != "json_schema" and given:
            raise ValueError(f"must have a '{given[0]}' only if its type is 'json_schema'")
        return self


class TextOptions(Strict):
    """The form of an answer, and its length, which cannot be chosen."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class Reasoning(Strict):
    """How much the model reasons."""

    effort: Text | None = None
    summary: None = None


class FunctionTool(Strict):
    """A tool; its further fields are for the chat template."""

    model_config = ConfigDict(extra="allow")
    type: Literal["function"]
    name: Text


class FunctionChoice(Strict):
    """The function that must be called."""

    type: Literal["function"]
    name: Text


Items: TypeAlias = Annotated[
    list[Annotated[Message | Thought | Call | CallResult, Field(discriminator="type")]],
    Field(min_length=1),
    BeforeValidator(_items_of, json_schema_input_type=str | list[dict[str, Any]]),
]


class ResponseFields(AnswerFields):
    """A request to /v1/responses."""

    input: Items
    instructions: Text | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolMode | FunctionChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    chat_template_kwargs: dict[Text, Any] | None = None

    def as_chat(self) -> Chat:
        """Returns the request to /v1/chat/completions that asks for the same answer."""
        first = {"role": "system", "content": self.instructions}
        form, choice = None if self.text is None else self.text.format, self.tool_choice
        same = (*AnswerFields.model_fields, "parallel_tool_calls", "chat_template_kwargs")
        asked = {
            "messages": [*([first] if self.instructions else []), *_turns(self.input)],
            "max_tokens": self.max_output_tokens,
            "tools": [_chat_form(tool) for tool in self.tools or []],
            "tool_choice": _chat_form(choice) if isinstance(choice, FunctionChoice) else choice,
            "response_format": None if form is None else _chat_form(form),
            "reasoning_effort": None if self.reasoning is None else self.reasoning.effort,
            "stream_options": {"include_usage": True} if self.stream else None,
        }
        return Chat.model_validate(asked | {name: getattr(self, name) for name in same})


@contextmanager
def own_names() -> Iterator[None]:
    """Lets refusals of a chat name the fields of the request for a response."""
    try:
        yield
    except RefusedError as refusal:
        refusal.param = _NAMES.get(refusal.param or "", refusal.param)
        for name, own_name in _NAMES.items():
            refusal.detail = refusal.detail.replace(f"'{name}'", f"'{own_name}'")
        raise


_TEXTS = {
    "message": "output_text", "reasoning": "reasoning_text",
    "function_call": "function_call_arguments",
}  # fmt: skip
"""The name of an item's text in events, by the type of the item."""


@dataclass
class _Item:
    """An item of an answer, whose methods return the events that tell of the item.

    Attributes:
        index: Its place in the list.
        type: A key of `_TEXTS`.
        call: Id and name of a call; empty for other types.
        text: The text so far, or the arguments of a call.
        status: Whether the item is complete.
    """

    index: int
    type: str
    call: Json
    text: str = ""
    status: str = "in_progress"
    id: str = field(default_factory=lambda: f"item_{secrets.token_hex(12)}")

    @property
    def body(self) -> Json:
        """The item as JSON."""
        body = {"id": self.id, "type": self.type, "status": self.status, **self.call}
        if self.call:
            return {**body, "arguments": self.text}
        own: Json = {"role": "assistant"} if self.type == "message" else {"summary": []}
        return {**body, **own, "content": [] if self.status == "in_progress" else [self._part()]}

    def _part(self) -> Json:
        return {"type": _TEXTS[self.type], "text": self.text, "annotations": [], "logprobs": []}

    def begin(self) -> list[Json]:
        return [self._event("output_item.added", item=self.body), *self._part_events("added")]

    def add(self, text: str) -> list[Json]:
        self.text += text
        return [self._event(f"{_TEXTS[self.type]}.delta", delta=text)]

    def end(self, status: str) -> list[Json]:
        self.status = status
        whole = {**self.call, "arguments": self.text} if self.call else {"text": self.text}
        done = [self._event(f"{_TEXTS[self.type]}.done", **whole), *self._part_events("done")]
        return [*done, self._event("output_item.done", item=self.body)]

    def _part_events(self, state: str) -> list[Json]:
        """Returns no event for a call, which has no parts."""
        return [] if self.call else [self._event(f"content_part.{state}", part=self._part())]

    def _event(self, kind: str, **fields: Any) -> Json:
        where = {} if self.call else {"content_index": 0, "logprobs": []}
        head = {"type": f"response.{kind}", "output_index": self.index, "item_id": self.id}
        return {**head, **where, **fields}


class ItemExchange:
    """An exchange whose answer is sent as items."""

    def __init__(self, asked: ResponseFields, exchange: Exchange) -> None:
        """Takes the request, and the exchange of the same request as a chat."""
        self._asked, self._exchange = asked, exchange
        self._items: list[_Item] = []

    async def whole(self) -> Json:
        """Waits for the answer and returns the response."""
        body = await self._exchange.whole()
        self._add(body["choices"][0]["message"], body["choices"][0]["finish_reason"])
        return self._body(body["usage"])

    async def stream(self) -> AsyncIterator[str]:
        """Yields the events of the response."""
        number = 0
        async for told in self._events():
            yield f"event: {told['type']}\n{event({**told, 'sequence_number': number})}"
            number += 1

    async def _events(self) -> AsyncIterator[Json]:
        for name in ("created", "in_progress"):
            yield {"type": f"response.{name}", "response": self._body()}
        try:
            async for chunk in self._exchange.chunks():
                for choice in chunk["choices"]:
                    for told in self._add(choice["delta"], choice["finish_reason"]):
                        yield told
        except RefusedError as refusal:
            yield {**refusal.body()["error"], "type": "error"}
            return
        body = self._body(chunk["usage"])
        yield {"type": f"response.{body['status']}", "response": body}

    def _add(self, part: Json, reason: str | None) -> list[Json]:
        """Adds a part of a chat's message, and returns the events that tell of it."""
        events: list[Json] = []
        for kind, call, text in self._pieces(part):
            last = self._items[-1] if self._items else None
            if last is None or (last.type, last.call) != (kind, call):
                events += [] if last is None else last.end("completed")
                self._items.append(_Item(len(self._items), kind, call))
                events += self._items[-1].begin()
            events += self._items[-1].add(text)
        if reason:
            events += self._items[-1].end("incomplete" if reason == "length" else "completed")
        return events

    def _pieces(self, part: Json) -> Iterator[tuple[str, Json, str]]:
        """Yields the texts of a part, each with the type and the call of its item."""
        for kind, name in (("reasoning", "reasoning_content"), ("message", "content")):
            text = part.get(name)
            # An empty answer is an empty message.
            if text or (text is not None and not self._items):
                yield kind, {}, text
        for call in part.get("tool_calls", ()):
            named = {"call_id": call["id"], "name": call["function"]["name"]}
            yield "function_call", named, call["function"]["arguments"]

    def _body(self, usage: Json | None = None) -> Json:
        """Returns the response with its items so far; `usage` is that of a chat that has ended."""
        asked, choice = self._asked, self._asked.tool_choice
        status = self._items[-1].status if self._items else "in_progress"
        body: Json = {
            "id": f"resp_{self._exchange.id}",
            "object": "response",
            "created_at": self._exchange.created,
            "model": self._exchange.service.name,
            "status": status,
            "output": [item.body for item in self._items],
            "tools": [tool.model_dump() for tool in asked.tools or []],
            "tool_choice": (
                choice.model_dump() if isinstance(choice, FunctionChoice) else choice or "auto"
            ),
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
        }
        if status == "incomplete":
            body["incomplete_details"] = {"reason": "max_output_tokens"}
        if usage is not None:
            body["usage"] = {
                "input_tokens": usage["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": usage["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage["total_tokens"],
            }
        return body
