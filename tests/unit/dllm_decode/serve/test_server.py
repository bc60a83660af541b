"""The socket of the server."""

import asyncio
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from served import QUESTIONS, chat_of, decoder_of, wait_until

from dllm_decode import load_model
from dllm_decode.serve.limits import Limits
from samplers import FixedSchedule

httpx = pytest.importorskip("httpx2", reason="needs the client of OpenAI")
pytest.importorskip("fastapi", reason="needs the extra serve")


def test_connections_send_at_once() -> None:
    """Each first chunk on a kept connection waited 40 ms until the header was acknowledged."""
    from dllm_decode.serve.sockets import bind

    no_delay_flags: list[int] = []

    async def connect() -> None:
        def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            no_delay_flags.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        bound = bind("127.0.0.1", 0)
        async with await asyncio.start_server(note, sock=bound):
            reader, writer = await asyncio.open_connection(*bound.getsockname())
            await reader.read()
            writer.close()

    asyncio.run(connect())
    assert len(no_delay_flags) == 1
    assert no_delay_flags[0] > 0


def test_a_client_is_not_refused_once_the_address_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line was written half a second before uvicorn listened."""
    from dllm_decode.serve import server
    from dllm_decode.serve.service import Service
    from dllm_decode.serve.sockets import bind

    class Idle:
        def run(self, sockets: list[socket.socket]) -> None:
            assert messages[0].startswith("Listening at")

    monkeypatch.setattr(server, "make_server", lambda *arguments, **options: Idle())
    messages: list[str] = []
    bound = bind("127.0.0.1", 0)

    def say(line: str) -> None:
        messages.append(line)
        socket.create_connection(bound.getsockname(), timeout=5.0).close()

    with bound:
        server.serve(Service.__new__(Service), bound, "127.0.0.1", api_key=None, say=say)
    assert messages[1] == "Stopped."


def test_the_grace_cuts_streams_and_refuses_other_requests() -> None:
    """The grace was exceeded by slow rounds."""
    from dllm_decode.serve.server import make_server, url_of
    from dllm_decode.serve.service import Service
    from dllm_decode.serve.sockets import bind

    class Slow:
        """A model whose forwards take a second."""

        def __init__(self, model: Any) -> None:
            self._model = model

        def __getattr__(self, name: str) -> Any:
            return getattr(self._model, name)

        def predict(self, inputs: Any) -> Any:
            time.sleep(1.0)
            return self._model.predict(inputs)

    model, words = load_model("mini")
    decoders = {"default": decoder_of(Slow(model), FixedSchedule(32))}
    limits = Limits(max_tokens=128, grace_s=0.5, gen_length=128, num_rows=2)
    service = Service.start("mini", words, decoders, limits)
    with bind("127.0.0.1", 0) as bound, ThreadPoolExecutor(4) as pool:
        url = url_of(bound, "127.0.0.1")
        server = make_server(service, "127.0.0.1", log_level="critical")
        running = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        running.start()
        wait_until(lambda: server.started)
        request = {"messages": chat_of(QUESTIONS[0]), "ignore_eos": True}

        def ask(number: int) -> Any:
            body = {**request, "stream": number % 2 == 0}
            return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=30.0)

        futures = [pool.submit(ask, number) for number in range(4)]
        lane = service.runner.lanes["default"]
        wait_until(lambda: lane.num_running + lane.num_waiting == 4)
        started_s = time.monotonic()
        server.handle_exit(signal.SIGTERM, None)
        for number, future in enumerate(futures):
            if number % 2:
                assert future.result().status_code == 503
                assert "The server is being stopped." in future.result().text
            else:
                with pytest.raises(httpx.RemoteProtocolError):
                    future.result()
        assert time.monotonic() - started_s < 4.0
        running.join(20.0)
    assert not running.is_alive()
    assert service.runner.is_broken, "the lanes' thread must have ended"
