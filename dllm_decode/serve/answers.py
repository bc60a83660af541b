"""The JSON of answers, whole and in pieces."""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from dllm_decode.core.output import DecodeOutput
from dllm_decode.serve.asks import Choice
from dllm_decode.serve.errors import writable
from dllm_decode.serve.jobs import Scored
from dllm_decode.serve.service import Service

Kind: TypeAlias = Literal["chat", "text"]
_WHOLE = {"chat": "chat.completion", "text": "text_completion"}
_CHUNK = {"chat": "chat.completion.chunk", "text": "text_completion"}
DONE = "data: [DONE]\n\n"


class Usage(NamedTuple):
    """Numbers of tokens."""

    prompt: int
    answer: int

    def body(self) -> dict[str, int]:
        """Returns them as clients read them."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.answer,
            "total_tokens": self.prompt + self.answer,
        }


class Part(NamedTuple):
    """Text of one choice.

    Attributes:
        choice: The choice that the text belongs to.
        text: The whole text, or the new part.
        tokens: The answer's tokens so far.
        first: Position of the first token of the text.
        output: The decode, once it has ended.
    """

    choice: Choice
    text: str
    tokens: list[int]
    first: int = 0
    output: DecodeOutput | None = None


@dataclass(frozen=True)
class Reply:
    """Makes the pieces of one response, which share an id, a kind and a time."""

    service: Service
    kind: Kind
    created: int
    id: str = field(default_factory=lambda: f"cmpl-{secrets.token_hex(12)}")

    def whole(self, parts: Sequence[Part], usage: Usage) -> dict[str, Any]:
        """Returns a response in one piece."""
        choices = [self._choice(part, "message") for part in parts]
        return {**self._head(_WHOLE), "choices": choices, "usage": usage.body()}

    def chunk(self, part: Part, usage: Usage | None = None) -> str:
        """Returns an event with new text of one choice, and the numbers of tokens so far."""
        counted = {} if usage is None else {"usage": usage.body()}
        return event({**self._head(_CHUNK), "choices": [self._choice(part, "delta")], **counted})

    def draft(self, choice: Choice, tokens: Sequence[int | None], number: int) -> str:
        """Returns an event with the answer as it is after a round, open positions as null."""
        decode = self.service.tokenizer.decode
        pieces = [None if token is None else decode([token]) for token in tokens]
        empty = {"delta": {"content": ""}} if self.kind == "chat" else {"text": ""}
        canvas = {"round": number, "tokens": pieces}
        body = {"index": choice.number, **empty, "canvas": canvas, "finish_reason": None}
        return event({**self._head(_CHUNK), "choices": [body]})

    def usage(self, usage: Usage) -> str:
        """Returns the event with the numbers of tokens, which comes last."""
        return event({**self._head(_CHUNK), "choices": [], "usage": usage.body()})

    def _head(self, kinds: dict[str, str]) -> dict[str, Any]:
        return {
            "id": f"chat{self.id}" if self.kind == "chat" else self.id,
            "object": kinds[self.kind],
            "created": self.created,
            "model": self.service.name,
        }

    def _choice(self, part: Part, name: str) -> dict[str, Any]:
        choice, output = part.choice, part.output
        body: dict[str, Any] = {"index": choice.number}
        if self.kind == "chat":
            body[name] = {"role": "assistant", "content": part.text}
        else:
            body["text"] = part.text
        recorder = choice.recorder
        body["logprobs"] = None
        if recorder is not None and recorder.num_top is not None:
            body["logprobs"] = self._logprobs(part, recorder.scores)
        body["finish_reason"] = None if output is None else choice.finish_reason(output)
        if recorder is not None and choice.wants_trace and output is not None:
            body["trace"] = {
                "forwards": int(output.nfe[0]),
                "tokens_per_forward": output.tokens_per_forward(),
                "steps": [recorder.steps.get(at, -1) for at in range(len(part.tokens))],
            }
        return body

    def _logprobs(self, part: Part, scores: dict[int, Scored]) -> dict[str, Any]:
        positions = range(part.first, len(part.tokens))
        # Given tokens are certain, and have no score.
        found = [
            (part.tokens[at], scores.get(at, Scored(0.0, [(part.tokens[at], 0.0)])))
            for at in positions
        ]
        if self.kind == "chat":
            return {"content": [self._token(token, scored) for token, scored in found]}
        before = [len(part.choice.prose.whole(part.tokens[:at])) for at in positions]
        return {
            "tokens": [self._text(token) for token, _ in found],
            "token_logprobs": [scored.logprob for _, scored in found],
            "top_logprobs": [
                {self._text(token): logprob for token, logprob in scored.top} for _, scored in found
            ],
            "text_offset": before,
        }

    def _token(self, token: int, scored: Scored) -> dict[str, Any]:
        top = [self._scored(other, logprob) for other, logprob in scored.top]
        return {**self._scored(token, scored.logprob), "top_logprobs": top}

    def _scored(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._text(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    def _text(self, token: int) -> str:
        return writable(self.service.tokenizer.decode([token]))


def event(body: dict[str, Any]) -> str:
    """Returns a server-sent event. It ends with two line feeds: clients split events there."""
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"
