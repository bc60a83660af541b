"""The answers of a request as JSON, whole and in pieces."""

import json
import secrets
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field

from prometheus_client import Histogram

from dllm_decode.core.output import DecodeOutput
from dllm_decode.serve.choices import ResponseChoice
from dllm_decode.serve.errors import RefusedError, writable_text
from dllm_decode.serve.jobs import CanvasShown, Finished, Scored, Update
from dllm_decode.serve.request_fields import Chat, Completion, StreamOptions
from dllm_decode.serve.request_parts import Json
from dllm_decode.serve.service import Channel, Service
from dllm_decode.text.unknown_words import unknown_words

DONE = "data: [DONE]\n\n"


def event(body: Json) -> str:
    """Returns a server-sent event; it ends with two line feeds, at which clients split events."""
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


@dataclass(frozen=True)
class Exchange:
    """A request that waits for its answers; the pieces of its response share an id and a time.

    Attributes:
        service: The model.
        asked: The request; `asked.stream` is true if the response is sent in chunks.
        channel: The jobs' events.
        choices: The answers.
        num_prompt_tokens: Tokens of the prompts, each counted once.
        created: When the request came, in seconds since 1970.
        id: Name of the request.
    """

    service: Service
    asked: Completion | Chat
    channel: Channel
    choices: list[ResponseChoice]
    num_prompt_tokens: int
    created: int = field(default_factory=lambda: int(time.time()))
    id: str = field(default_factory=lambda: f"cmpl-{secrets.token_hex(12)}")

    async def whole(self) -> Json:
        """Waits for all answers and returns the response."""
        bodies: dict[int, Json] = {}
        while len(bodies) < len(self.choices):
            number, update = await self.channel.next()
            assert isinstance(update, Finished)
            bodies[number] = self._finished(self.choices[number], update.output)
        self._observe(self.service.metrics.request_s)
        return self._body([bodies[choice.number] for choice in self.choices], self._usage())

    async def chunks(self) -> AsyncIterator[Json]:
        """Yields the parts of the response.

        Raises:
            RefusedError: If a job has failed, or the deadline has passed.
        """
        num_open, is_first = len(self.choices), True
        options = self.asked.stream_options or StreamOptions()
        while num_open:
            number, update = await self.channel.next()
            num_open -= isinstance(update, Finished)
            body = self._piece(self.choices[number], update)
            if body is None:
                continue
            if is_first:
                is_first = False
                self._observe(self.service.metrics.first_chunk_s)
            # A canvas that is shown sends no tokens of the answer.
            has_usage = options.continuous_usage_stats and not isinstance(update, CanvasShown)
            usage = self._usage() if has_usage else None
            for chunk in (*self._beginnings(number), body):
                yield self._body([chunk], usage)
        if options.include_usage:
            yield self._body([], self._usage())
        self._observe(self.service.metrics.request_s)

    async def stream(self) -> AsyncIterator[str]:
        """Yields the events of the response."""
        try:
            async for chunk in self.chunks():
                yield event(chunk)
        except RefusedError as refusal:
            # The status was sent with the first chunk.
            yield event(refusal.body())
        yield DONE

    def _beginnings(self, number: int) -> Iterator[Json]:
        """Yields an empty first part for each message before message `number` that has no part.

        The client of OpenAI joins choices in the order in which they begin.
        """
        for earlier in self.choices[:number]:
            if self.asked.is_chat and not earlier.is_begun:
                yield self._choice(earlier, {"content": ""}, [])

    def _observe(self, seconds: Histogram) -> None:
        """Counts the seconds from the request to now."""
        seconds.observe(time.perf_counter() - self.channel.began_s)

    def _usage(self) -> Json:
        """Returns the numbers of tokens so far."""
        num_tokens = sum(choice.num_sent for choice in self.choices)
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": num_tokens,
            "total_tokens": self.num_prompt_tokens + num_tokens,
        }

    def _body(self, choices: Sequence[Json], usage: Json | None = None) -> Json:
        """Returns the response, or one chunk of it."""
        kind, prefix = "text_completion", ""
        if self.asked.is_chat:
            kind = "chat.completion.chunk" if self.asked.stream else "chat.completion"
            prefix = "chat"
        head = {
            "id": f"{prefix}{self.id}",
            "object": kind,
            "created": self.created,
            "model": self.service.name,
            "choices": list(choices),
        }
        return head if usage is None else {**head, "usage": usage}

    def _piece(self, choice: ResponseChoice, update: Update) -> Json | None:
        """Returns the choice to send after an event; `None` if no text can be sent yet."""
        if isinstance(update, CanvasShown):
            return self._canvas_choice(choice, update)
        if isinstance(update, Finished):
            return self._finished(choice, update.output)
        text = choice.prose.more(update.tokens)
        if not text or not (part := choice.reader.more(text, is_last=False)):
            return None
        return self._choice(choice, part, choice.prose.kept(update.tokens))

    def _canvas_choice(self, choice: ResponseChoice, shown: CanvasShown) -> Json:
        """Returns a choice with the answer as it is after a round, unsettled ones as null."""
        decode = self.service.tokenizer.decode
        pieces = [None if token is None else decode([token]) for token in shown.tokens]
        canvas = {"round": shown.round, "tokens": pieces}
        body = {"index": choice.number, **self._text_part(choice, {"content": ""})}
        return {**body, "canvas": canvas, "finish_reason": None}

    def _finished(self, choice: ResponseChoice, output: DecodeOutput) -> Json:
        """Returns a choice with the text that was not sent yet and its end; counts the answer."""
        tokens, reason = choice.end(output)
        part = choice.reader.more(choice.prose.rest(tokens), is_last=True)
        if not part and not choice.reader.has_calls:
            part = {"content": ""}
        body = self._choice(choice, part, tokens)
        body["finish_reason"] = "tool_calls" if choice.reader.has_calls else reason
        if choice.recorder is not None and self.asked.return_trace:
            steps, prompt = choice.recorder.steps, choice.job.request.prompt
            question = self.asked.questions[choice.number // (self.asked.n or 1)]
            unknown = unknown_words(self.service.tokenizer, [question], [prompt])
            body["trace"] = {
                "forwards": int(output.nfe[0]),
                # Counts the tokens that are sent: no EOS, and no tokens after a stop string.
                "tokens_per_forward": len(tokens) / max(1, int(output.nfe[0])),
                "seconds": output.wall_s,
                "steps": [steps.get(at, -1) for at in range(len(tokens))],
                "unknown_words": list(unknown.words),
            }
        num_prompt_tokens = len(choice.job.request.prompt)
        self.service.metrics.answered(num_prompt_tokens, choice.num_sent, output)
        return body

    def _choice(self, choice: ResponseChoice, part: Json, tokens: list[int]) -> Json:
        """Returns a choice with new text, and notes that the answer's tokens so far are sent."""
        body: Json = {"index": choice.number, **self._text_part(choice, part)}
        recorder, body["logprobs"] = choice.recorder, None
        if recorder is not None and recorder.num_top is not None:
            body["logprobs"] = self._logprobs(choice, tokens, recorder.scores)
        choice.num_sent = len(tokens)
        return {**body, "finish_reason": None}

    def _text_part(self, choice: ResponseChoice, part: Json) -> Json:
        """Returns the message or text of a choice, with a role in the first part of a message."""
        if not self.asked.is_chat:
            return {"text": part.get("content", "")}
        # Clients join the parts of a stream, and would join the roles too.
        role = {} if choice.is_begun else {"role": "assistant"}
        choice.is_begun = True
        if self.asked.stream:
            return {"delta": {**role, **part}}
        for call in part.get("tool_calls", ()):
            # Only the parts of a stream are numbered.
            del call["index"]
        return {"message": {**role, "content": None, **part}}

    def _logprobs(
        self, choice: ResponseChoice, tokens: list[int], scores: dict[int, Scored]
    ) -> Json:
        positions = range(choice.num_sent, len(tokens))
        # Given tokens have no score: their probability is 1.
        pairs = [(tokens[at], scores.get(at, Scored(0.0, [(tokens[at], 0.0)]))) for at in positions]
        if self.asked.is_chat:
            content = []
            for token, (logprob, top) in pairs:
                likely = [self._scored(*pair) for pair in top]
                content.append({**self._scored(token, logprob), "top_logprobs": likely})
            return {"content": content}
        return {
            "tokens": [self._text(token) for token, _ in pairs],
            "token_logprobs": [scored.logprob for _, scored in pairs],
            # Several tokens may have the same text; the likeliest one of them is kept.
            "top_logprobs": [
                {self._text(token): logprob for token, logprob in reversed(scored.top)}
                for _, scored in pairs
            ],
            "text_offset": [len(choice.prose.whole(tokens[:at])) for at in positions],
        }

    def _scored(self, token: int, logprob: float) -> Json:
        text = self._text(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    def _text(self, token: int) -> str:
        return writable_text(self.service.tokenizer.decode([token]))
