"""The JSON of requests. A field that is not listed here is refused by name."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator

from dllm_decode.serve.errors import RefusedError
from dllm_decode.serve.jobs import Shown
from dllm_decode.serve.request_parts import (
    Function,
    ResponseFormat,
    Strict,
    Text,
    Tool,
    ToolChoice,
    ToolMode,
    Turn,
    without_nulls,
)

NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "best_of": (1,), "echo": (False,), "suffix": ("",), "frequency_penalty": (0,),
    "presence_penalty": (0,), "repetition_penalty": (1,), "length_penalty": (1,),
    "guided_json": (), "guided_regex": (), "guided_choice": (), "guided_grammar": (),
    "logit_bias": ({},),
    "min_p": (0,), "min_tokens": (0,), "use_beam_search": (False,), "skip_special_tokens": (True,),
    "store": (False,), "tools": ([],), "tool_choice": ("none", "auto"), "functions": ([],),
    "function_call": ("none", "auto"), "parallel_tool_calls": (True, False),
    "modalities": (["text"],),
    "service_tier": ("auto", "default"), "audio": (), "prediction": (),
    "reasoning_effort": (), "chat_template_kwargs": ({},), "max_completion_tokens": (),
    "previous_response_id": (), "conversation": (), "background": (False,), "include": ([],),
    "truncation": ("disabled",), "max_tool_calls": (), "prompt_cache_key": (),
    "safety_identifier": (),
}  # fmt: skip
"""Fields of other servers, and the values that ask for nothing; so does null."""

_NO_PENALTY = (
    "A penalty counts the tokens before a position, which may still be open when its token is "
    "drawn."
)
_TRUNCATION_HINT = "Use 'top_p' or 'top_k' to limit which tokens may be drawn."
_STRUCTURE_HINT = (
    "Use 'structured_outputs', such as {\"regex\": \"[0-9]+\"}, with 'json', 'regex' or 'choice'."
)
_NOTHING_KEPT = "This server keeps no answers; send the earlier messages, calls and results again."
_REASONS = {
    "previous_response_id": _NOTHING_KEPT, "conversation": _NOTHING_KEPT, "store": _NOTHING_KEPT,
    "frequency_penalty": _NO_PENALTY, "presence_penalty": _NO_PENALTY,
    "repetition_penalty": _NO_PENALTY, "min_p": _TRUNCATION_HINT,
    "guided_json": _STRUCTURE_HINT, "guided_regex": _STRUCTURE_HINT,
    "guided_choice": _STRUCTURE_HINT, "guided_grammar": _STRUCTURE_HINT,
}  # fmt: skip
"""Why a field of another server is not supported, or the field to use."""

MAX_STOPS = 16
MAX_TOOLS = 128
MAX_TOP_LOGPROBS = 20


def _stops(value: object) -> object:
    listed = [value] if isinstance(value, str) else value
    if listed is None:
        return []
    if not isinstance(listed, list) or not all(isinstance(text, str | None) for text in listed):
        raise ValueError("must be a text, a list of texts or null")
    return [text for text in listed if text is not None]


def _check_template(value: object) -> object:
    if not isinstance(value, str | None):
        raise ValueError("must be a text with blanks, such as 'emma has [MASK:5] apples'")
    return value


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_whole, value))


def _prompt(value: object) -> object:
    if isinstance(value, str) or _is_ids(value):
        return [value]
    listed = value if isinstance(value, list) else []
    if listed and (all(isinstance(v, str) for v in listed) or all(_is_ids(v) for v in listed)):
        return value
    raise ValueError("must be a text, a list of texts, token ids, or a list of lists of token ids")


Stops: TypeAlias = Annotated[
    list[Annotated[Text, Field(min_length=1)]],
    BeforeValidator(_stops, json_schema_input_type=str | list[str] | None),
    Field(max_length=MAX_STOPS),
]
PromptIds: TypeAlias = list[Text] | list[list[int]]


class StreamOptions(Strict):
    """The numbers of tokens in a stream: at its end, or in each chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class AnswerFields(Strict):
    """Fields of all requests for answers. `None` is the server's own value."""

    model: Text | None = None
    temperature: Annotated[float, Field(ge=0.0, le=100.0)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stream: bool | None = None
    ignore_eos: bool | None = None
    # Notes that clients make for themselves.
    user: Text | None = None
    metadata: dict[Text, Text] | None = None
    sampler: Text | None = None
    extra_keys: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_neutral(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {name: value for name, value in values.items() if not _is_neutral(cls, name, value)}


class CompletionFields(AnswerFields):
    """Fields of both kinds of completions."""

    max_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: Stops = Field(default_factory=list)
    n: Annotated[int, Field(ge=1)] | None = None
    stream_options: StreamOptions | None = None
    template: Annotated[Text | None, BeforeValidator(_check_template)] = None
    return_trace: bool | None = None
    stream_mode: Literal["text", "denoise"] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: Annotated[dict[str, Any], AfterValidator(without_nulls)] | None = None

    @model_validator(mode="after")
    def _with_stream(self) -> "CompletionFields":
        stream_fields = {
            "stream_mode": self.stream_mode == "denoise",
            "stream_options": self.stream_options is not None,
        }
        for name, is_used in stream_fields.items():
            if is_used and not self.stream:
                raise RefusedError(400, f'{name!r} needs "stream": true.', param=name)
        is_text = self.response_format is None or self.response_format.type == "text"
        if not is_text and self.structured_outputs is not None:
            message = "'response_format' and 'structured_outputs' must not both be given."
            raise RefusedError(400, message, param="structured_outputs")
        return self

    @property
    def forced(self) -> list[Function]:
        """The functions of which the answer must call one; empty if the answer is a text."""
        return []

    @property
    def shown(self) -> Shown:
        """The tokens that the request gets in each round."""
        if not self.stream:
            return "nothing"
        return "canvas" if self.stream_mode == "denoise" else "prefix"


class Completion(CompletionFields):
    """A request to /v1/completions."""

    is_chat: ClassVar[bool] = False
    prompt: Annotated[
        PromptIds, BeforeValidator(_prompt, json_schema_input_type=str | list[int] | PromptIds)
    ]
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    @property
    def questions(self) -> list[str]:
        """The text of each prompt; empty for token ids."""
        return [prompt if isinstance(prompt, str) else "" for prompt in self.prompt]

    @property
    def num_top(self) -> int | None:
        """Number of likeliest tokens to return per position; `None`: no log-probabilities."""
        return self.logprobs


class Chat(CompletionFields):
    """A request to /v1/chat/completions."""

    is_chat: ClassVar[bool] = True
    messages: Annotated[list[Turn], Field(min_length=1)]
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolMode | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Text | None = None
    chat_template_kwargs: dict[Text, Any] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "Chat":
        if self.top_logprobs is not None and not self.logprobs:
            message = "'top_logprobs' needs \"logprobs\": true."
            raise RefusedError(400, message, param="top_logprobs")
        if not self.tools and any(turn.role == "tool" for turn in self.messages):
            message = "The result of a call needs the 'tools' of its request."
            raise RefusedError(400, message, param="messages")
        lengths = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(lengths) > 1:
            message = "'max_tokens' and 'max_completion_tokens' must be equal if both are given."
            raise RefusedError(400, message, param="max_tokens")
        self.max_tokens = next(iter(lengths), None)
        self._check_forced()
        return self

    def _check_forced(self) -> None:
        if self.tool_choice in (None, "none", "auto"):
            return
        if not self.forced:
            message = "'tool_choice' must name a function of 'tools'."
            raise RefusedError(400, message, param="tool_choice")
        is_text = self.response_format is None or self.response_format.type == "text"
        if self.stop or self.structured_outputs is not None or not is_text:
            message = (
                "'tool_choice' that forces a call needs an answer that is one; leave out 'stop', "
                "'response_format' and 'structured_outputs'."
            )
            raise RefusedError(400, message, param="tool_choice")

    @property
    def forced(self) -> list[Function]:
        functions = [tool.function for tool in self.tools or []]
        if isinstance(self.tool_choice, ToolChoice):
            name = self.tool_choice.function.name
            return [function for function in functions if function.name == name]
        return functions if self.tool_choice == "required" else []

    @property
    def listed_tools(self) -> list[Tool]:
        """The tools that the model is told of."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def questions(self) -> list[str]:
        """The text of the last message."""
        return [self.messages[-1].content]

    @property
    def template_arguments(self) -> dict[str, dict[str, Any]]:
        """Values of the chat template's variables, by the field that sets them."""
        effort = self.reasoning_effort
        return {
            "chat_template_kwargs": self.chat_template_kwargs or {},
            "reasoning_effort": {} if effort is None else {"reasoning_effort": effort},
        }

    @property
    def num_top(self) -> int | None:
        """As in `Completion`."""
        return (self.top_logprobs or 0) if self.logprobs else None


class Weights(Strict):
    """A request to /v1/weights."""

    model: Text | None = None
    folder: Annotated[Text, Field(min_length=1)]


def _is_neutral(kind: type[BaseModel], name: str, value: object) -> bool:
    """Returns True if a field is not one of this server's, and asks for nothing.

    Raises:
        RefusedError: If a field of another server asks for something, or there is no such field.
    """
    if name in kind.model_fields:
        return False
    if name not in NEUTRAL:
        close = get_close_matches(name, kind.model_fields, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ", or not supported here."
        message = f"{name!r} is not a field of this request{hint}"
        raise RefusedError(400, message, param=name, code="unknown_parameter")
    # In Python True equals 1 and False equals 0.
    kinds = {bool} if isinstance(value, bool) else {int, float, str, list, dict}
    asks_nothing = any(value == neutral and type(neutral) in kinds for neutral in NEUTRAL[name])
    if value is None or asks_nothing:
        return True
    message = f"{name!r} is not supported by this server; leave it out. {_REASONS.get(name, '')}"
    raise RefusedError(400, message.rstrip(), param=name, code="unsupported_parameter")
