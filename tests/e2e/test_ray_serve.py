"""Two replicas of the server under Ray, on two cores."""

import asyncio
import signal
import socket
import subprocess
import sys
import threading
from argparse import Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from processes import ray_environment
from served import QUESTIONS, chat_of, wait_until

from dllm_decode import generate, load_model
from samplers import ConfidenceThreshold

httpx = pytest.importorskip("httpx2", reason="needs the client of OpenAI")
pytest.importorskip("ray.serve", reason="needs the extra ray")
ROOT = Path(__file__).parents[2]


class Served:
    """A process that serves replicas, and what it has said so far."""

    def __init__(self, port: int) -> None:
        self.said: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "examples/ray_serve.py", "--port", str(port)], cwd=ROOT,
            env=ray_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def listens(self) -> bool:
        """Waits; False if Ray has not started within its 30 seconds, as on a busy machine."""
        wait_until(lambda: "Listening" in self.text or self.process.poll() is not None, 200.0)
        assert "Listening" in self.text or "timed out during startup" in self.text, self.text
        return self.process.poll() is None

    @property
    def text(self) -> str:
        return "".join(self.said)

    def end(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60.0)
        self._reader.join()
        self.process.stdout.close()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.said.append(line)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = Served(port)
    for _ in range(3):
        if server.listens():
            break
        server.end()
        server = Served(port)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.end()


def num_running(url: str) -> int:
    """Answers that have a row, of whichever replica responds, at most."""
    return max(int(httpx.get(f"{url}/health").json()["running"]) for _ in range(8))


@pytest.mark.parametrize(
    ("host", "status"), [("localhost", 400), ("::1", 400), ("127.0.0.1", 400), ("0.0.0.0", 200)]
)
def test_a_replica_checks_hosts_and_names_its_model_as_the_server_does(
    host: str, status: int
) -> None:
    """The check was off at localhost, and the name of a folder with a slash was empty."""
    from examples.ray_serve import build

    folder = f"{ROOT}/dllm_decode/assets/mini/"
    options = Namespace(model=folder, device="cpu", sampler="Wino()", num_rows=2, host=host)

    async def ask(asked_host: str) -> Any:
        transport = httpx.ASGITransport(app=build(options))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get("/v1/models", headers={"host": asked_host})

    assert asyncio.run(ask("example.com")).status_code == status
    (model,) = asyncio.run(ask("localhost")).json()["data"]
    assert model["id"] == "mini"


@pytest.mark.slow
def test_hang_ups_are_cancelled(url: str) -> None:
    """Half of those that do not stream ran to the end."""
    body = {"messages": chat_of(QUESTIONS[0]), "max_tokens": 1024, "ignore_eos": True}
    for stream in (False, True) * 6:
        with pytest.raises(httpx.TimeoutException):
            httpx.post(f"{url}/v1/chat/completions", json={**body, "stream": stream}, timeout=0.2)
    wait_until(lambda: num_running(url) == 0, 2.0)


@pytest.mark.slow
def test_replicas_answer_as_one_server(url: str) -> None:
    model, tokenizer = load_model("mini")
    chats = [chat_of(question) for question in QUESTIONS]
    answers = generate(model, tokenizer, chats, ConfidenceThreshold(0.9), gen_length=64).texts

    def ask(number: int) -> str:
        body = {"messages": chats[number % len(chats)], "max_tokens": 64}
        return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60.0).json()["choices"][
            0
        ]["message"]["content"]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(24))) == answers * 4
    body = {"messages": chats[0], "max_tokens": 64, "stream": True}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60.0) as response:
        lines = [line for line in response.iter_lines() if line]
    assert len(lines) > 2
    assert lines[-1] == "data: [DONE]"
    assert httpx.get(f"{url}/wrong").json()["error"]["message"] == "Not Found: GET /wrong."
