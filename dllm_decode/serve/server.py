"""The process: a socket, the app and an orderly end."""

import asyncio
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from types import FrameType

import uvicorn

from dllm_decode.serve.api import create_app
from dllm_decode.serve.service import Service
from dllm_decode.serve.sockets import LOCAL

# The lanes' thread asks for Python's lock after each operation of torch. By default it waits 5 ms
# for it whenever the thread of the connections is busy: 16 clients then had 8 % fewer tokens/s.
_SWITCH_S = 0.0005
# After the grace: to tell clients that the server ends.
_LAST_S = 1
_LOOK_S = 0.05


def url_of(bound: socket.socket, host: str) -> str:
    """Returns the address for clients."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{bound.getsockname()[1]}"


def make_server(
    service: Service,
    host: str,
    *,
    api_key: str | None = None,
    weights_root: Path | None = None,
    log_level: str = "warning",
    say: Callable[[str], object] = lambda text: None,
) -> uvicorn.Server:
    """Returns a server; `run(sockets=[...])` ends after SIGTERM or Ctrl-C.

    Requests that run then have `Limits.grace_s` seconds to finish.
    """
    app = create_app(service, api_key=api_key, is_local=host in LOCAL, weights_root=weights_root)
    most_s = ceil(service.limits.grace_s) + _LAST_S
    config = uvicorn.Config(
        app, loop="asyncio", http="h11", ws="none", log_level=log_level, access_log=False,
        server_header=False, timeout_graceful_shutdown=most_s, lifespan="on",
    )  # fmt: skip
    return _Server(config, service, say)


class _Server(uvicorn.Server):
    """Ends requests that take longer than the grace with an error of the API.

    A second Ctrl-C ends them at once, a third one the process.
    """

    def __init__(
        self, config: uvicorn.Config, service: Service, say: Callable[[str], object]
    ) -> None:
        super().__init__(config)
        self._service = service
        self._say = say
        self._is_hurried = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        is_second = self.should_exit and not self._is_hurried and sig == signal.SIGINT
        if not is_second:
            super().handle_exit(sig, frame)
        self._is_hurried |= is_second

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends the server."""
        runner = self._service.runner
        num_answers = runner.num_running + runner.num_waiting
        if num_answers:
            self._say(
                f"Waiting up to {self._service.limits.grace_s:g} s for {num_answers} answers. "
                "Ctrl-C ends them now."
            )
        ending = asyncio.create_task(self._end_requests())
        await super().shutdown(sockets)
        ending.cancel()

    async def _end_requests(self) -> None:
        """Ends the requests after the grace, and those that still come on open connections."""
        until_s = time.monotonic() + self._service.limits.grace_s
        while time.monotonic() < until_s and not self._is_hurried:
            await asyncio.sleep(_LOOK_S)
        while True:
            self._service.end_requests()
            await asyncio.sleep(_LOOK_S)


def serve(
    service: Service,
    bound: socket.socket,
    host: str,
    *,
    api_key: str | None,
    weights_root: Path | None = None,
    say: Callable[[str], object],
) -> None:
    """Serves at a socket of `bind` until the process is told to end.

    `say` is told the address for clients, and later that the server has ended.
    """
    url = url_of(bound, host)
    sys.setswitchinterval(_SWITCH_S)
    # Clients that come before uvicorn is ready wait for it, and are not refused.
    bound.listen()
    say(f"Listening at {url}, for clients of OpenAI at {url}/v1. Ctrl-C ends it.")
    with _ended_by_signals():
        server = make_server(service, host, api_key=api_key, weights_root=weights_root, say=say)
        server.run(sockets=[bound])
    say("Stopped.")


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Lets SIGTERM and Ctrl-C end a server of uvicorn, but not the process with it.

    After its own end, uvicorn raises the signal that ended it once more.
    """
    numbers = (signal.SIGTERM, signal.SIGINT)
    handlers = [signal.signal(number, lambda *_: None) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)
