"""The recipe of docs/scale.md for nginx, where nginx is installed: replicas come and die."""

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from served import QUESTIONS, chat_of, wait_until

httpx = pytest.importorskip("httpx2", reason="needs the client of OpenAI")
pytest.importorskip("fastapi", reason="needs the extra serve")

ROOT = Path(__file__).parents[2]
NGINX = shutil.which("nginx")


@pytest.fixture
def processes() -> Iterator[Any]:
    """Gives a function that starts a process, which ends with the test."""
    with ExitStack() as stack:

        def start(*words: str) -> Any:
            environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
            child = stack.enter_context(subprocess.Popen(words, cwd=ROOT, env=environment))
            stack.callback(child.kill)
            return child

        yield start


def free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        bound = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [one.getsockname()[1] for one in bound]


def configuration(folder: Path, listening: int, replicas: list[int]) -> str:
    """Returns the recipe with other ports and two replicas, as a whole configuration."""
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    recipe = page.partition("```nginx\n")[2].partition("```")[0]
    servers = re.findall(r" +server 127\.0\.0\.1:\d+.*\n", recipe)
    assert len(servers) == 4
    for server, port in zip(servers, (*replicas, None, None), strict=True):
        own = re.sub(r":\d+", f":{port}", server) if port else ""
        recipe = recipe.replace(server, own)
    recipe = recipe.replace("listen 8000", f"listen 127.0.0.1:{listening}")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = " ".join(f"{kind}_temp_path {folder / kind};" for kind in kinds)
    return (
        f"daemon off; worker_processes 1; pid {folder / 'pid'}; error_log {folder / 'log'};\n"
        f"events {{}}\nhttp {{ access_log off; {places}\n{recipe}}}\n"
    )


@pytest.mark.slow
@pytest.mark.skipif(NGINX is None, reason="needs nginx")
def test_no_whole_answer_is_lost_when_replicas_start_late_or_die(
    tmp_path: Path, processes: Any
) -> None:
    """nginx took both replicas for dead that had been starting: 30 of 32 answers were errors."""
    listening, *replicas = free_ports(3)
    url = f"http://127.0.0.1:{listening}"
    file = tmp_path / "nginx.conf"
    file.write_text(configuration(tmp_path, listening, replicas))
    processes(str(NGINX), "-p", str(tmp_path), "-e", str(tmp_path / "log"), "-c", str(file))

    def status(address: str) -> int:
        try:
            return int(httpx.get(f"{address}/health").status_code)
        except httpx.TransportError:
            return 0

    wait_until(lambda: status(url) == 502)
    servers = [
        processes(sys.executable, "-m", "dllm_decode", "serve", "--quiet", "--port", str(port))
        for port in replicas
    ]
    for port in replicas:
        wait_until(lambda port=port: status(f"http://127.0.0.1:{port}") == 200, 300.0)

    def ask(number: int) -> tuple[int, str]:
        body = {
            "messages": chat_of(QUESTIONS[number % 4]), "max_tokens": 64, "temperature": 2.0,
            "seed": number % 4,
        }  # fmt: skip
        got = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300.0)
        return got.status_code, got.json()["choices"][0]["message"][
            "content"
        ] if got.status_code == 200 else ""

    with ThreadPoolExecutor(16) as pool:
        first = [*pool.map(ask, range(32))]
        assert [code for code, _ in first] == [200] * 32
        assert first == first[:4] * 8
        asked = [pool.submit(ask, number) for number in range(64)]
        wait_until(lambda: sum(one.done() for one in asked) >= 8, 300.0)
        assert not all(one.done() for one in asked)
        servers[0].kill()
        assert [one.result() for one in asked] == first * 2
