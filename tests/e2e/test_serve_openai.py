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
        assert self._process.stderr is not None
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
        assert self._process.stderr is not None
        self._process.stderr.close()


def start() -> Process:
    return Process("--allow-sampler", "slow=FixedSchedule(16)", "--num-rows", "2")


@pytest.fixture(scope="module")
def process() -> Iterator[Process]:
    found = start()
    yield found
    found.close()


@pytest.fixture(scope="module")
def client(process: Process) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{process.url}/v1", api_key="none", max_retries=5) as found:
        wait_until(lambda: found.models.list().data)
        yield found


def test_the_client_gets_whole_answers_streams_and_choices(process: Process, client: Any) -> None:
    assert process.said[0].startswith("mini with ConfidenceThreshold(threshold=0.9), 2 rows")
    assert [model.id for model in client.models.list()] == ["mini"]
    asked = {"model": "mini", "messages": chat_of(QUESTIONS[0]), "max_tokens": 64}
    assert client.chat.completions.create(**asked).choices[0].message.content == ANSWERS[0]
    stream = client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}, extra_body={"sampler": "slow"}
    )
    chunks = list(stream)
    assert len(chunks) > 3
    assert chunks[-1].usage.completion_tokens > 0
    text = "".join(chunk.choices[0].delta.content for chunk in chunks[:-1])
    assert text.split()[-2:] == ANSWERS[0].split()[-2:]
    several = client.chat.completions.create(**asked, n=3, temperature=2.5, seed=1, stop=["####"])
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    assert all("####" not in choice.message.content for choice in several.choices)
    text_of = client.completions.create(model="mini", prompt=[QUESTIONS[0], "x"], max_tokens=8)
    assert len(text_of.choices) == 2


def test_the_client_reads_the_model_and_log_probabilities(client: Any) -> None:
    found = client.models.retrieve("mini")
    assert (found.id, found.object, found.owned_by) == ("mini", "model", "dllm_decode")
    asked = {"model": "mini", "messages": chat_of(QUESTIONS[0]), "max_tokens": 64}
    scored: Any = {"logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**asked, **scored).choices[0].logprobs.content
    assert " ".join(score.token for score in whole) == ANSWERS[0]
    for score in whole:
        assert bytes(score.bytes).decode().strip() == score.token
        assert score.logprob == max(top.logprob for top in score.top_logprobs) <= 0
    chunks = client.chat.completions.create(**asked, **scored, stream=True)
    streamed = [score for chunk in chunks for score in chunk.choices[0].logprobs.content]
    assert streamed == whole


def test_refusals_are_the_errors_of_the_client(client: Any) -> None:
    asked = {"model": "mini", "messages": chat_of(QUESTIONS[0])}
    with pytest.raises(openai.BadRequestError, match="max_tokens") as caught:
        client.chat.completions.create(**asked, max_tokens=10_000)
    assert caught.value.param == "max_tokens"
    with pytest.raises(openai.BadRequestError, match="logit_bias"):
        client.chat.completions.create(**asked, logit_bias={"5": 3})
    with pytest.raises(openai.NotFoundError, match="model"):
        client.chat.completions.create(**{**asked, "model": "gpt-5"})
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="mini", input="x")


@pytest.fixture
def ending(process: Process) -> Iterator[Process]:
    """The process of the tests above, or another one if it has ended."""
    found = process if process.status is None else start()
    yield found
    found.close()


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_running_requests_are_finished_when_the_server_is_told_to_end(
    ending: Process, number: int
) -> None:
    process = ending
    found: list[str] = []

    def ask() -> None:
        with openai.OpenAI(base_url=f"{process.url}/v1", api_key="none", max_retries=0) as client:
            asked = {"model": "mini", "messages": chat_of(QUESTIONS[0]), "max_tokens": 96}
            stream = client.chat.completions.create(
                **asked, stream=True, extra_body={"ignore_eos": True, "sampler": "slow"}
            )
            for chunk in stream:
                found.append(chunk.choices[0].finish_reason)

    with openai.OpenAI(base_url=f"{process.url}/v1", api_key="none", max_retries=5) as client:
        wait_until(lambda: client.models.list().data)
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(found) > 1)
    process.end(number)
    for thread in threads:
        thread.join(30.0)
    wait_until(lambda: process.status is not None)
    assert found.count("length") == 4
    assert process.status == 0, process.said
    assert process.said[-1] == "Stopped.\n"
    assert "Traceback" not in "".join(process.said)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--allow-sampler", "Wino()"], "NAME=EXPR"),
        (["--allow-sampler", "default=Wino()"], "a name of its own"),
        (["--max-tokens", "8"], "gen_length must be at most"),
        (["--host", "192.0.2.1"], "cannot listen at 192.0.2.1"),
        (["--host", "nosuch.invalid"], "cannot listen at nosuch.invalid"),
    ],
)
def test_a_wrong_start_is_refused_before_a_model_is_loaded(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The folder holds no model, which only loading it would tell."""
    assert main(["serve", "--model", str(tmp_path), "--port", "0", *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert str(tmp_path) not in said


def test_a_port_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """99999999 was taken for another one."""
    with pytest.raises(SystemExit):
        main(["serve", "--port", "65536"])
    assert "argument --port" in capsys.readouterr().err
