"""Two replicas of the server under Ray, on two cores."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from served import QUESTIONS, chat_of, wait_until

from dllm_decode import generate, load_model
from samplers import ConfidenceThreshold

httpx = pytest.importorskip("httpx2", reason="needs the client of OpenAI")
pytest.importorskip("ray.serve", reason="needs the extra ray")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def url() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    said: list[str] = []
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Otherwise Ray writes a token of its own to the home folder.
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "examples/ray_serve.py", "--port", str(port)], cwd=ROOT, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    reader = threading.Thread(target=lambda: said.extend(iter(process.stdout.readline, "")))
    reader.start()
    try:
        wait_until(lambda: any("Listening" in line for line in said), 200.0)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60.0)
        reader.join()
        process.stdout.close()


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
