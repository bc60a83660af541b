"""Answers as they come, whole or as a stream."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from dllm_decode.serve.answers import DONE, Part, Reply, Usage, event
from dllm_decode.serve.asks import Choice
from dllm_decode.serve.errors import RefusedError
from dllm_decode.serve.jobs import Drafted, Finished, Grown, JobEvent
from dllm_decode.serve.service import Channel

T = TypeVar("T")


@dataclass(frozen=True)
class Exchange:
    """One request that waits for its answers.

    Attributes:
        reply: The shape of the response.
        channel: The jobs' events.
        choices: The answers.
        num_prompt_tokens: Tokens of the prompts, each counted once.
        wants_usage: True if a stream ends with the numbers of tokens.
        counts_chunks: True if each chunk of a stream has the numbers so far.
        began_s: When the request came, by `time.perf_counter`.
    """

    reply: Reply
    channel: Channel
    choices: list[Choice]
    num_prompt_tokens: int
    wants_usage: bool
    counts_chunks: bool
    began_s: float

    async def whole(self) -> dict[str, Any]:
        """Waits for all answers and returns the response."""
        parts: dict[int, Part] = {}
        while len(parts) < len(self.choices):
            number, told = await self.channel.next()
            assert isinstance(told, Finished)
            choice = self.choices[number]
            tokens = choice.tokens(told.output)
            parts[number] = Part(choice, choice.prose.whole(tokens), tokens, 0, told.output)
            self._count(parts[number])
        self._metrics.ended(time.perf_counter() - self.began_s)
        listed = [parts[choice.number] for choice in self.choices]
        return self.reply.whole(listed, self._usage([len(part.tokens) for part in listed]))

    async def stream(self) -> AsyncIterator[str]:
        """Yields the events of the response."""
        sent = [0] * len(self.choices)
        num_open, is_first = len(self.choices), True
        try:
            while num_open:
                number, told = await self.channel.next()
                num_open -= isinstance(told, Finished)
                piece = self._piece(self.choices[number], told, sent)
                if piece and is_first:
                    is_first = False
                    self._metrics.first_chunk(time.perf_counter() - self.began_s)
                if piece:
                    yield piece
            if self.wants_usage:
                yield self.reply.usage(self._usage(sent))
            self._metrics.ended(time.perf_counter() - self.began_s)
        except RefusedError as refusal:
            # The status was sent with the first chunk.
            yield event(refusal.body())
        yield DONE

    def _piece(self, choice: Choice, told: JobEvent, sent: list[int]) -> str:
        """Returns the event that tells one of a job, or nothing.

        Args:
            choice: Whose event it is.
            told: The event.
            sent: By choice how many tokens its chunks are of; is changed.
        """
        if isinstance(told, Drafted):
            return self.reply.draft(choice, told.tokens, told.round)
        first = sent[choice.number]
        if isinstance(told, Grown):
            text = choice.prose.more(told.tokens)
            if not text:
                return ""
            tokens = choice.prose.kept(told.tokens)
            sent[choice.number] = len(tokens)
            return self._chunk(Part(choice, text, tokens, first), sent)
        assert isinstance(told, Finished)
        tokens = choice.tokens(told.output)
        part = Part(choice, choice.prose.rest(tokens), tokens, first, told.output)
        sent[choice.number] = len(tokens)
        self._count(part)
        return self._chunk(part, sent)

    def _chunk(self, part: Part, sent: list[int]) -> str:
        return self.reply.chunk(part, self._usage(sent) if self.counts_chunks else None)

    def _count(self, part: Part) -> None:
        assert part.output is not None
        num_prompt_tokens = len(part.choice.job.request.prompt)
        self._metrics.answered(num_prompt_tokens, len(part.tokens), part.output)

    def _usage(self, lengths: list[int]) -> Usage:
        return Usage(self.num_prompt_tokens, sum(lengths))

    @property
    def _metrics(self) -> Any:
        return self.reply.service.metrics


class EventStream(StreamingResponse):
    """A stream whose jobs are cancelled however it ends, also before its first chunk."""

    def __init__(self, exchange: Exchange) -> None:
        """Streams the events of an exchange."""
        super().__init__(
            exchange.stream(),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )
        self._exchange = exchange

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_sent = False

        async def sending(message: Any) -> None:
            nonlocal is_sent
            await send(message)
            is_sent = message["type"] == "http.response.body" and not message.get("more_body")

        try:
            await super().__call__(scope, receive, sending)
        finally:
            self._exchange.channel.cancel()
            if not is_sent:
                self._exchange.reply.service.metrics.hung_up()


async def unless_hung_up(request: Request, answer: Awaitable[T]) -> T | None:
    """Waits for an answer; returns `None` if the client goes away before."""
    answering = asyncio.ensure_future(answer)
    leaving = asyncio.ensure_future(_hang_up(request.receive))
    try:
        await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
        return answering.result() if answering.done() else None
    finally:
        leaving.cancel()
        answering.cancel()


async def _hang_up(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
