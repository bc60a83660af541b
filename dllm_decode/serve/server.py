"""The process: a socket, the app and an orderly end."""

import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path

import uvicorn

from dllm_decode.serve.api import create_app
from dllm_decode.serve.service import Service
from dllm_decode.serve.sockets import LOCAL

# The lanes' thread asks for Python's lock after each operation of torch. By default it waits 5 ms
# for it whenever the thread of the connections is busy: 16 clients then had 8 % fewer tokens/s.
_SWITCH_S = 0.0005


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
) -> uvicorn.Server:
    """Returns a server; `run(sockets=[...])` ends after SIGTERM or Ctrl-C.

    Requests that run then have `Limits.grace_s` to finish.
    """
    app = create_app(service, api_key=api_key, is_local=host in LOCAL, weights_root=weights_root)
    config = uvicorn.Config(
        app, loop="asyncio", http="h11", ws="none", log_level=log_level, access_log=False,
        server_header=False, lifespan="on",
        timeout_graceful_shutdown=ceil(service.limits.grace_s),
    )  # fmt: skip
    return uvicorn.Server(config)


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
        server = make_server(service, host, api_key=api_key, weights_root=weights_root)
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
