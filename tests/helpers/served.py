"""A server on 127.0.0.1 in a thread of the test, jobs without HTTP, and a browser."""

import base64
import json
import os
import queue
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from dllm_decode import DecodeConfig, load_model, new_decoder
from dllm_decode.engine.decoder import Decoder
from dllm_decode.serve.jobs import Job, JobEvent
from dllm_decode.serve.lanes import Lane, LaneRunner
from dllm_decode.serve.limits import Limits
from samplers import ConfidenceThreshold, Sampler

QUESTIONS = [
    f"emma has {n} apples. emma finds {m} more apples and then gives {k} apples to ben. "
    "how many apples does emma have now?"
    for n, m, k in [(12, 30, 8), (5, 9, 3), (40, 2, 11), (21, 33, 7), (9, 9, 9), (64, 12, 30)]
]
INDICES = count(10_000)
THRESHOLD = ConfidenceThreshold(0.9)
LIMITS = Limits(max_tokens=128, gen_length=64, max_length=512)


def chat_of(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


def decoder_of(
    model: Any, sampler: Sampler = THRESHOLD, *, gen_length: int = 128, **options: Any
) -> Decoder:
    config = DecodeConfig(gen_length=gen_length, **options)
    return new_decoder(model, sampler, config=config)


def byte_level(pieces: Sequence[str], merges: Sequence[tuple[str, str]] = ()) -> Tokenizer:
    """Returns a tokenizer of the pieces, which are written in the alphabet of GPT-2."""
    tokenizer = Tokenizer(BPE({piece: n for n, piece in enumerate(pieces)}, list(merges)))
    tokenizer.pre_tokenizer, tokenizer.decoder = ByteLevel(False), ByteLevelDecoder()
    return tokenizer


def read_both(
    client: Any, *, extra_body: Mapping[str, Any] = MappingProxyType({}), **asked: Any
) -> list[Any]:
    """Returns the choices that OpenAI's client joins from a stream: those of the whole answer."""
    completions = client.chat.completions
    own = {name: value for name, value in extra_body.items() if name != "stream_mode"}
    whole = completions.create(**asked, extra_body=own).choices
    with completions.stream(**asked, extra_body=extra_body) as stream:
        joined: list[Any] = stream.get_final_completion().choices
    for choice, expected in zip(joined, whole, strict=True):
        message, same = choice.message, expected.message
        assert choice.finish_reason == expected.finish_reason
        assert message.role == same.role == "assistant"
        for name in ("content", "reasoning_content"):
            assert getattr(message, name, None) == getattr(same, name, None)
        functions, same_functions = (
            [(call.function.name, call.function.arguments) for call in answer.tool_calls or []]
            for answer in (message, same)
        )
        assert functions == same_functions
        assert len({call.id for call in message.tool_calls or []}) == len(functions)
    return joined


def at_once(work: Any, *arguments: Any) -> None:
    work(*arguments)


class Told:
    """A job and the events that it was sent."""

    def __init__(self, decoder: Decoder, prompt: list[int], **options: Any) -> None:
        shown, client = options.pop("shown", "nothing"), options.pop("client", "")
        self._events: queue.SimpleQueue[JobEvent] = queue.SimpleQueue()
        request = decoder.request(prompt, next(INDICES), noise_index=0, **options)
        self.job = Job(request, self._events.put, at_once, shown, client)

    def next(self, timeout_s: float = 20.0) -> JobEvent:
        return self._events.get(timeout=timeout_s)

    def is_silent(self, for_s: float = 0.3) -> bool:
        try:
            self._events.get(timeout=for_s)
        except queue.Empty:
            return True
        return False


@contextmanager
def runner_of(*decoders: Decoder, limits: Limits) -> Iterator[tuple[LaneRunner, list[Lane]]]:
    """Yields a runner and its lanes, one for each decoder."""
    runner = LaneRunner({str(n): decoder for n, decoder in enumerate(decoders)}, limits)
    try:
        yield runner, list(runner.lanes.values())
    finally:
        runner.close()


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
    weights_root: Path | None = None,
) -> Iterator[tuple[str, Any]]:
    """Yields the address of a server and its service."""
    from dllm_decode.serve.server import make_server, url_of
    from dllm_decode.serve.service import Service
    from dllm_decode.serve.sockets import bind

    model, words = load_model("mini")
    decoders = decoders or {"default": decoder_of(model, gen_length=limits.max_tokens)}
    service = Service.start("mini", tokenizer or words, decoders, limits)
    bound = bind("127.0.0.1", 0)
    server = make_server(
        service, "127.0.0.1", api_key=api_key, weights_root=weights_root, log_level="critical"
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield url_of(bound, "127.0.0.1"), service
    finally:
        server.should_exit = True
        thread.join(20.0)
        bound.close()


# Chromium without a window, told what to do through two pipes (the DevTools protocol).
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


class Browser:
    """One page."""

    def __init__(self, told: Any, said: Any) -> None:
        self._told, self._said, self._number = told, said, 0
        self._session: dict[str, str] = {}
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._session = {"sessionId": session}

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        request = {"id": self._number, "method": method, "params": params, **self._session}
        self._told.write(json.dumps(request).encode() + b"\0")
        while True:
            message = bytearray()
            while (byte := self._said.read(1)) != b"\0":
                assert byte, "the browser is gone"
                message += byte
            reply = json.loads(message)
            if reply.get("id") == self._number:
                assert "error" not in reply, reply
                return dict(reply["result"])

    def open(
        self, url: str, *, width: int = 1280, height: int = 800, is_dark: bool = False
    ) -> None:
        theme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[theme])
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
            mobile=False,
        )  # fmt: skip
        self.ask("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        reply = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in reply, reply
        return reply["result"].get("value")

    def wait_for(self, expression: str, timeout_s: float = 20.0) -> None:
        until = time.monotonic() + timeout_s
        while not self.value(expression):
            assert time.monotonic() < until, f"{expression} did not become true"
            time.sleep(0.02)

    def picture(self) -> bytes:
        return base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"])


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Yields a browser, and ends it after the `with` block."""
    assert CHROMIUM is not None
    (its_in, our_out), (our_in, its_out) = os.pipe(), os.pipe()
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-quic",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--hide-scrollbars", f"--user-data-dir={profile}", "--remote-debugging-pipe",
    ]  # fmt: skip
    # The browser reads from file 3 and writes to file 4.
    shell = ["bash", "-c", f'exec "$@" 3<&{its_in} 4>&{its_out}', "bash", *command]
    process = subprocess.Popen(
        shell, pass_fds=(its_in, its_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(its_in)
    os.close(its_out)
    with os.fdopen(our_out, "wb", buffering=0) as commands, os.fdopen(our_in, "rb") as replies:
        try:
            yield Browser(commands, replies)
        finally:
            process.terminate()
            process.wait(20.0)
