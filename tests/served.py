"""A server on 127.0.0.1 in a thread of the test, jobs without HTTP, and a streamer."""

import queue
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any

from torch import Tensor

from dllm_decode import DecodeConfig, load_model, new_decoder
from dllm_decode.decoder import Decoder
from dllm_decode.serve.engine import Engine, Lane
from dllm_decode.serve.jobs import Job, JobEvent
from dllm_decode.serve.limits import Limits
from samplers import ConfidenceThreshold, Sampler

QUESTIONS = [
    f"emma has {n} apples. emma finds {m} more apples and then gives {k} apples to ben. "
    "how many apples does emma have now?"
    for n, m, k in [(12, 30, 8), (5, 9, 3), (40, 2, 11), (21, 33, 7), (9, 9, 9), (64, 12, 30)]
]
INDICES = count(10_000)
THRESHOLD = ConfidenceThreshold(0.9)
LIMITS = Limits(max_tokens=128, gen_length=64, max_length=512, max_columns=4096)


def chat_of(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


def decoder_of(
    model: Any,
    sampler: Sampler = THRESHOLD,
    *,
    gen_length: int = 128,
    **options: Any,
) -> Decoder:
    config = DecodeConfig(gen_length=gen_length, **options)
    return new_decoder(model, sampler, config=config)


class Told:
    """A job and the events that it was told."""

    def __init__(self, decoder: Decoder, prompt: list[int], **options: Any) -> None:
        shown = options.pop("shown", "nothing")
        self._events: queue.SimpleQueue[JobEvent] = queue.SimpleQueue()
        request = decoder.request(prompt, next(INDICES), noise_index=0, **options)
        self.job = Job(request, self._events.put, shown=shown)

    def next(self, timeout_s: float = 20.0) -> JobEvent:
        return self._events.get(timeout=timeout_s)

    def is_silent(self, for_s: float = 0.3) -> bool:
        try:
            self._events.get(timeout=for_s)
        except queue.Empty:
            return True
        return False


@contextmanager
def engine_of(*decoders: Decoder, limits: Limits) -> Iterator[tuple[Engine, list[Lane]]]:
    """Yields an engine and its lanes, one a decoder."""
    engine = Engine({str(n): decoder for n, decoder in enumerate(decoders)}, limits)
    try:
        yield engine, list(engine.lanes.values())
    finally:
        engine.close()


def wait_until(is_so: Any, timeout_s: float = 20.0) -> None:
    until = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.005)


@contextmanager
def served(
    decoders: Mapping[str, Decoder] | None = None,
    *,
    limits: Limits = LIMITS,
    api_key: str | None = None,
    tokenizer: Any = None,
) -> Iterator[tuple[str, Any]]:
    """Yields the address of a server and its service."""
    from dllm_decode.serve.server import bind, make_server, url_of
    from dllm_decode.serve.service import Service

    model, words = load_model("mini")
    decoders = decoders or {"default": decoder_of(model, gen_length=limits.max_tokens)}
    service = Service.start("mini", tokenizer or words, decoders, limits)
    bound = bind("127.0.0.1", 0)
    server = make_server(service, "127.0.0.1", api_key=api_key, log_level="critical")
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield url_of(bound, "127.0.0.1"), service
    finally:
        server.should_exit = True
        thread.join(20.0)
        bound.close()


class Streamer:
    def __init__(self) -> None:
        self.drafts: list[Tensor] = []
        self.texts: list[Tensor] = []
        self.ended = 0

    def put_draft(self, value: Tensor) -> None:
        self.drafts.append(value)

    def put(self, value: Tensor) -> None:
        self.texts.append(value)

    def end(self) -> None:
        self.ended += 1
