"""The model that is served, and channels for events from the lanes' thread to a request."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeVar

from dllm_decode.blocks import Sequential
from dllm_decode.caches import NoCache
from dllm_decode.engine.decoder import Decoder
from dllm_decode.serve.compiler import Compiler
from dllm_decode.serve.errors import RefusedError
from dllm_decode.serve.jobs import Failed, Job, JobEvent, Update
from dllm_decode.serve.lanes import FullError, Lane, LaneRunner
from dllm_decode.serve.limits import Limits
from dllm_decode.serve.message_readers import Parsers
from dllm_decode.serve.metrics import Metrics
from dllm_decode.text.tokenization import Tokenizer
from dllm_decode.verify import NoVerifier
from samplers.facts import Fact, PlugIn

T = TypeVar("T")

_RETRY_AFTER_S = 1
_AS_TEMPLATE = Parsers()


@dataclass(frozen=True)
class Service:
    """A model that is served.

    Attributes:
        name: The model's name for clients.
        tokenizer: The tokenizer of the thread that reads requests.
        stop_tokenizer: A copy for the lanes' thread, because threads must not share tokenizers.
        runner: Lanes by name of their sampler; the first is the default.
        metrics: Counters.
        compiler: Compiles constraints.
        parsers: How calls and reasoning are written in answers to chats.
        created: When the server was started, in seconds since 1970.
        indices: Indices of requests of the loop, each used once.
    """

    name: str
    tokenizer: Any
    stop_tokenizer: Tokenizer
    runner: LaneRunner
    metrics: Metrics
    compiler: Compiler
    parsers: Parsers
    created: int = field(default_factory=lambda: int(time.time()))
    indices: Iterator[int] = field(default_factory=count)

    @staticmethod
    def start(
        name: str,
        tokenizer: Any,
        decoders: Mapping[str, Decoder],
        limits: Limits,
        parsers: Parsers = _AS_TEMPLATE,
    ) -> "Service":
        """Starts the lanes of a model, by name of their sampler; the first is the default."""
        default = next(iter(decoders.values()))
        lanes = {name: _with_logprobs(decoder) for name, decoder in decoders.items()}
        runner = LaneRunner(lanes, limits)
        compiler = Compiler(deepcopy(tokenizer), default)
        metrics = Metrics(runner)
        return Service(name, tokenizer, deepcopy(tokenizer), runner, metrics, compiler, parsers)

    @property
    def limits(self) -> Limits:
        """The bounds of the server."""
        return self.runner.limits

    @property
    def max_length(self) -> int:
        """Tokens of a prompt and its answer together, at most."""
        return self.limits.length_for(self.lane(None).decoder.model.max_length)

    @property
    def chosen_plugins(self) -> dict[str, PlugIn]:
        """The verifier, cache and blocks by name, without those that are the default."""
        decoder = self.lane(None).decoder
        plugins = {"verifier": decoder.verifier, "cache": decoder.cache, "blocks": decoder.blocks}
        defaults = (NoVerifier(), NoCache(), Sequential())
        return {name: plugin for name, plugin in plugins.items() if plugin not in defaults}

    @property
    def samplers(self) -> list[str]:
        """Names of the samplers that requests may name; the first is the default."""
        return list(self.runner.lanes)

    def lane(self, name: str | None) -> Lane:
        """Returns the lane of a sampler; the first lane if `name` is `None`.

        Raises:
            RefusedError: If there is no such sampler.
        """
        name = self.samplers[0] if name is None else name
        if name not in self.samplers:
            allowed = ", ".join(self.samplers)
            raise RefusedError(400, f"'sampler' must be one of {allowed}.", param="sampler")
        return self.runner.lanes[name]

    def channel(self, lane: Lane, client: str) -> "Channel":
        """Returns a channel for the events of one request."""
        return Channel(lane, self.limits.deadline_s, client)

    def ids(self, text: str) -> list[int]:
        """Returns the token ids of a text, without special tokens."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def check_lengths(self, prompt_length: int, gen_length: int) -> None:
        """Raises a refusal if an answer is too long, or a prompt and its answer together."""
        most = self.limits.max_tokens
        if gen_length > most:
            message = f"'max_tokens' must be at most {most} on this server, got {gen_length}."
            raise RefusedError(400, message, param="max_tokens")
        if prompt_length + gen_length > self.max_length:
            message = (
                f"Prompt and answer must have at most {self.max_length} tokens together on this "
                f"server, got {prompt_length} and {gen_length}."
            )
            raise RefusedError(400, message, code="context_length_exceeded")

    def check_model(self, name: str | None) -> None:
        """Raises a refusal if another model is asked for."""
        if name not in (None, self.name):
            message = f"The model of this server is {self.name!r}, got {str(name)[:80]!r}."
            raise RefusedError(404, message, param="model", code="model_not_found")


def _with_logprobs(decoder: Decoder) -> Decoder:
    """Returns a decoder whose views have the logits that its tokens were drawn from.

    Verifiers that decide in the sampler's place write these logits into the view if commits are
    recorded. A uniform-state model records no commits.
    """
    is_written = Fact.SAMPLER_DECIDES in decoder.verifier.gives or decoder.is_uniform_state
    return decoder if is_written else replace(decoder, return_logprobs=True)


class Channel:
    """Events of some jobs of one lane, for one task.

    Attributes:
        lane: Answers the jobs.
        client: Who asks.
        began_s: When the task began, by `time.perf_counter`.
    """

    def __init__(self, lane: Lane, deadline_s: float, client: str = "") -> None:
        """Begins without jobs; the deadline is `deadline_s` seconds from now."""
        self.lane = lane
        self.client = client
        self.began_s = time.perf_counter()
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + deadline_s
        self._events: asyncio.Queue[tuple[int, JobEvent]] = asyncio.Queue()
        self._jobs: list[Job] = []

    def emitter(self, number: int) -> Callable[[JobEvent], None]:
        """Returns the function that takes a job's events; events arrive with `number`."""
        return lambda event: self._events.put_nowait((number, event))

    @property
    def post(self) -> Callable[..., object]:
        """Calls a function in the thread of the task."""
        return self._loop.call_soon_threadsafe

    def submit(self, jobs: Sequence[Job]) -> None:
        """Lets jobs wait for a row.

        Raises:
            RefusedError: If too many wait.
        """
        try:
            self.lane.submit(jobs)
        except FullError:
            raise RefusedError(
                429,
                "Too many requests wait for this server. Try again later.",
                code="queue_full",
                headers={"Retry-After": str(_RETRY_AFTER_S)},
            ) from None
        self._jobs.extend(jobs)

    async def within(self, work: Awaitable[T]) -> T:
        """Waits for some work.

        Raises:
            RefusedError: If the deadline has passed.
        """
        try:
            async with asyncio.timeout_at(self._until):
                return await work
        except TimeoutError:
            raise RefusedError(
                504, "The request took longer than this server allows.", code="deadline"
            ) from None

    async def next(self) -> tuple[int, Update]:
        """Returns the next event and its number.

        Raises:
            RefusedError: If a job has failed, or the deadline has passed.
        """
        number, event = await self.within(self._events.get())
        if isinstance(event, Failed):
            raise RefusedError(event.status, event.message, code=event.code)
        return number, event

    def cancel(self) -> None:
        """Ends the jobs that have not ended yet."""
        for job in self._jobs:
            self.lane.cancel(job)
        self._jobs.clear()
