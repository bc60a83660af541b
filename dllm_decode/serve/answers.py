"""The JSON of answers, whole and in pieces."""

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from dllm_decode.core.output import DecodeOutput
from dllm_decode.serve.asks import ResponseChoice
from dllm_decode.serve.errors import writable
from dllm_decode.serve.jobs import Drafted, Grown, Scored
from dllm_decode.serve.service import Service

Json: TypeAlias = dict[str, Any]
Kind: TypeAlias = Literal["chat", "text"]
DONE = "data: [DONE]\n\n"


def event(body: Json) -> str:
    """Returns a server-sent event. It ends with two line feeds: clients split events there."""
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


def usage_of(num_prompt_tokens: int, num_tokens: int) -> Json:
    """Returns numbers of tokens."""
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_tokens,
        "total_tokens": num_prompt_tokens + num_tokens,
    }


@dataclass(frozen=True)
class Reply:
    """Makes the pieces of one response, which share an id, a kind and a time.

    Attributes:
        service: The model.
        kind: Which clients read it: those of chats, or those of completions.
        is_stream: True if the response is sent in chunks.
        created: When the request came, in seconds since 1970.
        began_s: The same by `time.perf_counter`.
        id: Its name.
    """

    service: Service
    kind: Kind
    is_stream: bool
    created: int = field(default_factory=lambda: int(time.time()))
    began_s: float = field(default_factory=time.perf_counter)
    id: str = field(default_factory=lambda: f"cmpl-{secrets.token_hex(12)}")

    def body(self, choices: Sequence[Json], usage: Json | None = None) -> Json:
        """Returns the response, or one chunk of it."""
        kind = "text_completion"
        if self.kind == "chat":
            kind = "chat.completion.chunk" if self.is_stream else "chat.completion"
        head = {
            "id": f"chat{self.id}" if self.kind == "chat" else self.id,
            "object": kind,
            "created": self.created,
            "model": self.service.name,
            "choices": list(choices),
        }
        return head if usage is None else {**head, "usage": usage}

    def drafted(self, choice: ResponseChoice, told: Drafted) -> Json:
        """Returns a choice with the answer as it is after a round, open positions as null."""
        decode = self.service.tokenizer.decode
        pieces = [None if token is None else decode([token]) for token in told.tokens]
        empty = {"delta": {"content": ""}} if self.kind == "chat" else {"text": ""}
        canvas = {"round": told.round, "tokens": pieces}
        return {"index": choice.number, **empty, "canvas": canvas, "finish_reason": None}

    def grown(self, choice: ResponseChoice, told: Grown) -> Json | None:
        """Returns a choice with the text that can be sent now; `None` if there is none."""
        text = choice.prose.more(told.tokens)
        return self._choice(choice, text, choice.prose.kept(told.tokens)) if text else None

    def finished(self, choice: ResponseChoice, output: DecodeOutput) -> Json:
        """Returns a choice with the text that was not sent yet, and why the answer has ended."""
        tokens, reason = choice.end(output)
        body = self._choice(choice, choice.prose.rest(tokens), tokens)
        body["finish_reason"] = reason
        if choice.recorder is not None and choice.wants_trace:
            steps = choice.recorder.steps
            body["trace"] = {
                "forwards": int(output.nfe[0]),
                "tokens_per_forward": output.tokens_per_forward(),
                "steps": [steps.get(at, -1) for at in range(len(tokens))],
            }
        return body

    def _choice(self, choice: ResponseChoice, text: str, tokens: list[int]) -> Json:
        """Returns a choice with new text.

        Args:
            choice: The answer that the text belongs to; notes that its tokens are sent.
            text: The text.
            tokens: The answer's tokens so far.
        """
        body: Json = {"index": choice.number}
        if self.kind == "chat":
            name = "delta" if self.is_stream else "message"
            body[name] = {"role": "assistant", "content": text}
        else:
            body["text"] = text
        recorder, body["logprobs"] = choice.recorder, None
        if recorder is not None and recorder.num_top is not None:
            body["logprobs"] = self._logprobs(choice, tokens, recorder.scores)
        choice.num_sent = len(tokens)
        return {**body, "finish_reason": None}

    def _logprobs(
        self, choice: ResponseChoice, tokens: list[int], scores: dict[int, Scored]
    ) -> Json:
        positions = range(choice.num_sent, len(tokens))
        # Given tokens are certain, and have no score.
        found = [(tokens[at], scores.get(at, Scored(0.0, [(tokens[at], 0.0)]))) for at in positions]
        if self.kind == "chat":
            content = []
            for token, (logprob, top) in found:
                others = [self._scored(*pair) for pair in top]
                content.append({**self._scored(token, logprob), "top_logprobs": others})
            return {"content": content}
        return {
            "tokens": [self._text(token) for token, _ in found],
            "token_logprobs": [scored.logprob for _, scored in found],
            "top_logprobs": [
                {self._text(token): logprob for token, logprob in scored.top} for _, scored in found
            ],
            "text_offset": [len(choice.prose.whole(tokens[:at])) for at in positions],
        }

    def _scored(self, token: int, logprob: float) -> Json:
        text = self._text(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    def _text(self, token: int) -> str:
        return writable(self.service.tokenizer.decode([token]))
