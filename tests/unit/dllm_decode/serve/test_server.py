"""The socket of the server."""

import asyncio
import socket

import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")


def test_connections_send_at_once() -> None:
    """Each first chunk on a kept connection waited 40 ms until the header was acknowledged."""
    from dllm_decode.serve.server import bind

    found: list[int] = []

    async def connect() -> None:
        def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            own = writer.get_extra_info("socket")
            found.append(own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        bound = bind("127.0.0.1", 0)
        async with await asyncio.start_server(note, sock=bound):
            reader, writer = await asyncio.open_connection(*bound.getsockname())
            await reader.read()
            writer.close()

    asyncio.run(connect())
    assert len(found) == 1
    assert found[0] > 0


def test_a_client_is_not_refused_once_the_address_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line was written half a second before uvicorn listened."""
    from dllm_decode.serve import server
    from dllm_decode.serve.service import Service

    class Idle:
        def run(self, sockets: list[socket.socket]) -> None:
            assert said[0].startswith("Listening at")

    monkeypatch.setattr(server, "make_server", lambda *given, **options: Idle())
    said: list[str] = []
    bound = server.bind("127.0.0.1", 0)

    def say(line: str) -> None:
        said.append(line)
        socket.create_connection(bound.getsockname(), timeout=5.0).close()

    with bound:
        server.serve(Service.__new__(Service), bound, "127.0.0.1", api_key=None, say=say)
    assert said[1] == "Stopped."
