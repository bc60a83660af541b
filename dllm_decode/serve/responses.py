"""Answers as they come, whole or as a stream."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from dllm_decode.serve.answers import DONE, Json, Reply, event, usage_of
from dllm_decode.serve.asks import ResponseChoice
from dllm_decode.serve.errors import RefusedError
from dllm_decode.serve.fields import StreamOptions
from dllm_decode.serve.jobs import Drafted, Finished, Told
from dllm_decode.serve.metrics import Metrics
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
        options: Which numbers of tokens a stream has.
    """

    reply: Reply
    channel: Channel
    choices: list[ResponseChoice]
    num_prompt_tokens: int
    options: StreamOptions

    async def whole(self) -> Json:
        """Waits for all answers and returns the response."""
        bodies: dict[int, Json] = {}
        while len(bodies) < len(self.choices):
            number, told = await self.channel.next()
            assert isinstance(told, Finished)
            bodies[number] = self._finished(self.choices[number], told)
        self.metrics.request_s.observe(time.perf_counter() - self.reply.began_s)
        listed = [bodies[choice.number] for choice in self.choices]
        return self.reply.body(listed, self._usage())

    async def stream(self) -> AsyncIterator[str]:
        """Yields the events of the response."""
        num_open, is_first = len(self.choices), True
        try:
            while num_open:
                number, told = await self.channel.next()
                num_open -= isinstance(told, Finished)
                piece = self._piece(self.choices[number], told)
                if piece and is_first:
                    is_first = False
                    self.metrics.first_chunk_s.observe(time.perf_counter() - self.reply.began_s)
                if piece:
                    yield piece
            if self.options.include_usage:
                yield event(self.reply.body([], self._usage()))
            self.metrics.request_s.observe(time.perf_counter() - self.reply.began_s)
        except RefusedError as refusal:
            # The status was sent with the first chunk.
            yield event(refusal.body())
        yield DONE

    @property
    def metrics(self) -> Metrics:
        """The counters of the server."""
        return self.reply.service.metrics

    def _piece(self, choice: ResponseChoice, told: Told) -> str:
        """Returns the event that tells one of a job; empty if there is nothing to tell."""
        if isinstance(told, Drafted):
            return event(self.reply.body([self.reply.drafted(choice, told)]))
        if isinstance(told, Finished):
            body: Json | None = self._finished(choice, told)
        else:
            body = self.reply.grown(choice, told)
        if body is None:
            return ""
        usage = self._usage() if self.options.continuous_usage_stats else None
        return event(self.reply.body([body], usage))

    def _finished(self, choice: ResponseChoice, told: Finished) -> Json:
        """Returns the last piece of an answer, and counts the answer."""
        body = self.reply.finished(choice, told.output)
        num_prompt_tokens = len(choice.job.request.prompt)
        self.metrics.answered(num_prompt_tokens, choice.num_sent, told.output)
        return body

    def _usage(self) -> Json:
        """Returns the numbers of tokens so far."""
        return usage_of(self.num_prompt_tokens, sum(choice.num_sent for choice in self.choices))


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

        async def sending(message: Message) -> None:
            nonlocal is_sent
            await send(message)
            is_sent = message["type"] == "http.response.body" and not message.get("more_body")

        try:
            await super().__call__(scope, receive, sending)
        finally:
            self._exchange.channel.cancel()
            if not is_sent:
                self._exchange.metrics.hang_ups.inc()


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
