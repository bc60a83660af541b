"""Reads the texts of answers as messages: content, and calls and reasoning as models write them."""

import json
import re
import secrets
from collections.abc import Callable
from typing import NamedTuple

from dllm_decode.serve.request_parts import Json
from dllm_decode.settings.command_options import CallParser, ReasoningParser
from dllm_decode.text.prose import num_begun


class Tags(NamedTuple):
    """The texts before and after a call or the reasoning of a model."""

    begin: str
    end: str


def _no_constant(name: str) -> object:
    raise ValueError(f"JSON has no {name}.")


def _read_hermes(text: str) -> Json:
    """Returns the call that a JSON object with a name and arguments describes.

    Raises:
        ValueError: If the text is something else.
    """
    call = json.loads(text, parse_constant=_no_constant)
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise ValueError('A call must be an object with a "name".')
    if not isinstance(call.get("arguments"), dict):
        raise ValueError('A call must have an object of "arguments".')
    arguments = json.dumps(call["arguments"], ensure_ascii=False)
    # JSON can write lone surrogates, which no response can hold.
    f"{call['name']}{arguments}".encode()
    return {"name": call["name"], "arguments": arguments}


_QUOTE = '<|"|>'
_GEMMA_CALL = re.compile(r"\s*call:([\w.-]+)(\{.*\})\s*", re.DOTALL)
_GEMMA_KEY = re.compile(r"([{,]\s*)([^\s{}\[\],:\"][^{}\[\],:\"]*?)\s*:")


def _read_gemma4(text: str) -> Json:
    """Returns the call of a text such as `call:name{city:<|"|>Oslo<|"|>,days:3}`.

    Raises:
        ValueError: If the text is something else.
    """
    match = _GEMMA_CALL.fullmatch(text)
    if match is None:
        raise ValueError("A call must be call:NAME{...}.")
    parts = match[2].split(_QUOTE)
    # Strings are between two quotes; the other parts are JSON but for the quotes around keys.
    parts[::2] = [_GEMMA_KEY.sub(r'\1"\2":', part) for part in parts[::2]]
    parts[1::2] = [json.dumps(part) for part in parts[1::2]]
    return _read_hermes(f'{{"name": "{match[1]}", "arguments": {"".join(parts)}}}')


class CallFormat(NamedTuple):
    """How a model writes calls.

    Attributes:
        tags: The texts around each call.
        read: Returns the name and the arguments of the call between the tags; raises ValueError
            for any other text.
        tokens: Special tokens of the call.
    """

    tags: Tags
    read: Callable[[str], Json]
    tokens: tuple[str, ...] = ()


_HERMES = CallFormat(Tags("<tool_call>", "</tool_call>"), _read_hermes)
_GEMMA = CallFormat(Tags("<|tool_call>", "<tool_call|>"), _read_gemma4, (_QUOTE,))
_THINK = Tags("<think>", "</think>")
_CHANNEL = Tags("<|channel>thought", "<channel|>")

# Names are those of vLLM.
_CALLS = {"hermes": _HERMES, "gemma4": _GEMMA, "none": None}
_REASONING = {"qwen3": _THINK, "deepseek_r1": _THINK, "gemma4": _CHANNEL, "none": None}


class Parsers(NamedTuple):
    """The formats of calls and reasoning; "auto": those that the model's chat template shows."""

    calls: CallParser = "auto"
    reasoning: ReasoningParser = "auto"

    def call_format(self, template: str) -> CallFormat | None:
        """Returns how calls are written; `None`: they are not read."""
        if self.calls != "auto":
            return _CALLS[self.calls]
        if _GEMMA.tags.begin in template:
            return _GEMMA
        # Qwen3-Coder writes XML between these tags.
        is_hermes = _HERMES.tags.begin in template and "<function=" not in template
        return _HERMES if is_hermes else None

    def reasoning_tags(self, template: str) -> Tags | None:
        """Returns the tags around reasoning; `None`: reasoning is not read."""
        if self.reasoning != "auto":
            return _REASONING[self.reasoning]
        shown = [tags for tags in (_CHANNEL, _THINK) if any(tag in template for tag in tags)]
        return shown[0] if shown else None


class MessageReader:
    """Reads the text of an answer as parts of a message; each part is sent once.

    White space next to a tag is left out. A call is sent once it is complete. If it cannot be read,
    its text is content.

    Attributes:
        has_calls: True once a call was sent.
    """

    def __init__(
        self,
        calls: CallFormat | None = None,
        reasoning: Tags | None = None,
        *,
        is_reasoning: bool = False,
        is_parallel: bool = True,
    ) -> None:
        """Begins before the first character.

        Args:
            calls: How calls are written; `None`: calls are not read.
            reasoning: The tags around reasoning; `None`: reasoning is not read.
            is_reasoning: True if the prompt ends with the first tag of reasoning.
            is_parallel: Send all calls, not only the first.
        """
        self.has_calls = False
        self._calls, self._reasoning, self._is_parallel = calls, reasoning, is_parallel
        self._kind = "reasoning_content" if is_reasoning else "content"
        self._num_calls = 0
        self._unread = ""
        # The first tag of the present call, with the white space before it.
        self._opening = ""
        self._is_empty, self._is_after_tag = True, is_reasoning

    def more(self, text: str, *, is_last: bool) -> Json:
        """Returns the new parts of the message; empty if none can be sent yet."""
        self._unread += text
        parts: Json = {}
        while self._has_passed_tag(parts):
            pass
        if self._kind == "call":
            if is_last:
                self._add_call(parts, self._unread, "")
            return parts
        unread, tags = self._unread, self._tags()
        end = len(unread)
        if tags and not is_last:
            end = len(unread[: end - num_begun(unread, tags)].rstrip())
        self._add(parts, unread[:end])
        self._unread = unread[end:]
        return parts

    def _tags(self) -> list[str]:
        """Returns the tags at which the present part may end."""
        tags: list[str] = []
        if self._calls is not None and self._kind != "reasoning_content":
            tags.append(self._calls.tags[self._kind == "call"])
        if self._reasoning is not None and self._kind != "call":
            begin, end = self._reasoning
            # Only white space may precede reasoning.
            start = self._unread.lstrip()[: len(begin)]
            tags += [begin] * (self._is_empty and begin.startswith(start))
            tags += [end] * (self._kind == "reasoning_content")
        return tags

    def _has_passed_tag(self, parts: Json) -> bool:
        """Adds the text before the next tag to the parts; returns False if there is no tag."""
        found = [(at, tag) for tag in self._tags() if (at := self._unread.find(tag)) >= 0]
        if not found:
            return False
        at, tag = min(found)
        before, self._unread = self._unread[:at], self._unread[at + len(tag) :]
        if self._kind == "call":
            self._add_call(parts, before, tag)
            self._kind = "content"
            return True
        text = before.rstrip()
        self._add(parts, text)
        self._opening, self._is_after_tag = before[len(text) :] + tag, True
        self._kind = "content"
        if self._calls is not None and tag == self._calls.tags.begin:
            self._kind = "call"
        if self._reasoning is not None and tag == self._reasoning.begin:
            self._kind = "reasoning_content"
        return True

    def _add(self, parts: Json, text: str) -> None:
        text = text.lstrip() if self._is_after_tag else text
        if text:
            parts[self._kind] = parts.get(self._kind, "") + text
            self._is_empty = self._is_after_tag = False

    def _add_call(self, parts: Json, text: str, end: str) -> None:
        assert self._calls is not None
        try:
            call = self._calls.read(text)
        except (ValueError, RecursionError):
            self._kind, self._is_after_tag = "content", False
            self._add(parts, self._opening + text + end)
            return
        self._is_empty, self._is_after_tag = False, True
        if self._is_parallel or not self.has_calls:
            parts.setdefault("tool_calls", []).append(call_part(self._num_calls, call))
            self._num_calls += 1
        self.has_calls = True


class CallReader:
    """Reads the text of a call that the request forces; the call is sent once it is complete.

    Attributes:
        has_calls: True, because the text is a call.
    """

    has_calls = True

    def __init__(self) -> None:
        """Begins before the first character."""
        self._text = ""

    def more(self, text: str, *, is_last: bool) -> Json:
        """Returns the call as part of a message; empty if the text is not complete yet."""
        self._text += text
        if not is_last:
            return {}
        name = json.loads(self._text)["name"]
        # As the model wrote them, without the brace that ends the call.
        function = {"name": name, "arguments": self._text.removeprefix(call_head(name))[:-1]}
        return {"tool_calls": [call_part(0, function)]}


def call_head(name: str) -> str:
    """Returns the JSON of a forced call up to its arguments."""
    return f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '


def call_part(index: int, function: Json) -> Json:
    """Returns a call as part of a message, with an id by which its result names the call."""
    call_id = f"call_{secrets.token_hex(12)}"
    return {"index": index, "id": call_id, "type": "function", "function": function}
