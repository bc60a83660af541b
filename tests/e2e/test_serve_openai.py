"""The server as its users run it: a process, and the client of OpenAI."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from served import QUESTIONS, chat_of, wait_until

from dllm_decode import generate, load_model
from dllm_decode.cli.main import main
from samplers import ConfidenceThreshold

openai = pytest.importorskip("openai")
pytest.importorskip("fastapi", reason="needs the extra serve")

ROOT = Path(__file__).parents[2]
MODEL, TOKENIZER = load_model("mini")
ANSWERS = generate(
    MODEL, TOKENIZER, [chat_of(text) for text in QUESTIONS], ConfidenceThreshold(0.9), gen_length=64
).texts


class Process:
    """`dllm-decode serve` in a process of its own."""

    def __init__(self, *words: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "dllm_decode", "serve", "--port", "0", *words]
        self.said: list[str] = []
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        wait_until(lambda: "Listening at" in "".join(self.said) or self.status is not None, 60.0)

    def _read(self) -> None:
        self.said.extend(iter(self._process.stderr.readline, ""))

    @property
    def url(self) -> str:
        line = next(line for line in self.said if line.startswith("Listening at"))
        return line.split()[2].rstrip(",")

    @property
    def status(self) -> int | None:
        return self._process.poll()

    def end(self, number: int) -> None:
        if self.status is None:
            self._process.send_signal(number)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(20.0)
        self._reader.join(20.0)
        self._process.stderr.close()


def start() -> Process:
    return Process("--allow-sampler", "slow=FixedSchedule(16)", "--num-rows", "2")


@pytest.fixture(scope="module")
def process() -> Iterator[Process]:
    started = start()
    yield started
    started.close()


@pytest.fixture(scope="module")
def client(process: Process) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{process.url}/v1", api_key="none", max_retries=5) as opened:
        wait_until(lambda: opened.models.list().data)
        yield opened


def test_the_client_gets_whole_answers_and_streams(process: Process, client: Any) -> None:
    assert process.said[0].startswith("mini with ConfidenceThreshold(threshold=0.9), 2 rows")
    assert [model.id for model in client.models.list()] == ["mini"]
    body = {"model": "mini", "messages": chat_of(QUESTIONS[0]), "max_tokens": 64}
    assert client.chat.completions.create(**body).choices[0].message.content == ANSWERS[0]
    stream = client.chat.completions.create(
        **body, stream=True, stream_options={"include_usage": True}, extra_body={"sampler": "slow"}
    )
    chunks = list(stream)
    assert len(chunks) > 3
    assert chunks[-1].usage.completion_tokens > 0
    text = "".join(chunk.choices[0].delta.content for chunk in chunks[:-1])
    assert text.split()[-2:] == ANSWERS[0].split()[-2:]


@pytest.fixture
def ending(process: Process) -> Iterator[Process]:
    """The process of the tests above, or another one if it has ended."""
    running = process if process.status is None else start()
    yield running
    running.close()


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_running_requests_are_finished_when_the_server_is_told_to_end(
    ending: Process, number: int
) -> None:
    process = ending
    finish_reasons: list[str] = []

    def ask() -> None:
        with openai.OpenAI(base_url=f"{process.url}/v1", api_key="none", max_retries=0) as client:
            body = {"model": "mini", "messages": chat_of(QUESTIONS[0]), "max_tokens": 96}
            stream = client.chat.completions.create(
                **body, stream=True, extra_body={"ignore_eos": True, "sampler": "slow"}
            )
            for chunk in stream:
                finish_reasons.append(chunk.choices[0].finish_reason)

    with openai.OpenAI(base_url=f"{process.url}/v1", api_key="none", max_retries=5) as client:
        wait_until(lambda: client.models.list().data)
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(finish_reasons) > 1)
    process.end(number)
    for thread in threads:
        thread.join(30.0)
    wait_until(lambda: process.status is not None)
    assert finish_reasons.count("length") == 4
    assert process.status == 0, process.said
    assert process.said[-1] == "Stopped.\n"
    assert "Traceback" not in "".join(process.said)


@pytest.mark.slow
def test_a_server_that_is_told_to_end_waits_no_longer_than_the_grace() -> None:
    process = Process("--allow-sampler", "slow=FixedSchedule(16)", "--grace-s", "1")
    try:
        with openai.OpenAI(base_url=f"{process.url}/v1", api_key="none", max_retries=0) as client:
            body = {"model": "mini", "messages": chat_of(QUESTIONS[0]), "max_tokens": 400, "n": 64}
            stream = client.chat.completions.create(
                **body, stream=True, extra_body={"ignore_eos": True, "sampler": "slow"}
            )
            process.end(signal.SIGTERM)
            with pytest.raises(openai.APIError):
                list(stream)
        wait_until(lambda: process.status is not None, 10.0)
        assert process.status == 0, process.said
        assert process.said[-1] == "Stopped.\n"
    finally:
        process.close()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--allow-sampler", "default=Wino()"], "a name of its own"),
        (["--max-tokens", "8"], "gen_length must be at most max_tokens=8"),
        (["--host", "192.0.2.1"], "cannot listen at 192.0.2.1"),
        (["--host", "nosuch.invalid"], "cannot listen at nosuch.invalid"),
    ],
)
def test_a_wrong_start_is_refused_before_a_model_is_loaded(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The folder holds no model, but only an attempt to load one would tell."""
    assert main(["serve", "--model", str(tmp_path), "--port", "0", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert str(tmp_path) not in error


def test_a_port_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """99999999 was taken for another port."""
    with pytest.raises(SystemExit):
        main(["serve", "--port", "65536"])
    assert "argument --port" in capsys.readouterr().err
