"""New weights over HTTP: who may load them, from where and when; wrong ones change nothing."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from served import QUESTIONS, chat_of, decoder_of, served, wait_until

from dllm_decode import generate, load_model, save_model
from dllm_decode.cli.main import main
from dllm_decode.models.loading.weight_versions import version_of
from dllm_decode.serve.limits import Limits
from samplers import ConfidenceThreshold, Decision, FixedSchedule, View
from samplers.fixed_schedule import ScheduleState

httpx = pytest.importorskip("httpx2", reason="needs the client of OpenAI")
pytest.importorskip("fastapi", reason="needs the extra serve")

MODEL, TOKENIZER = load_model("mini", dtype="float32")
KEY = {"authorization": "Bearer secret"}
LIMITS = Limits(num_rows=2, max_tokens=64, gen_length=64, max_length=512)


@dataclass(frozen=True)
class Slow(FixedSchedule):
    """Leaves time for requests that a test makes while a row is decoded."""

    def step(self, view: View, state: ScheduleState) -> tuple[Decision, ScheduleState]:
        time.sleep(0.02)
        return super().step(view, state)


SLOW = Slow(64)


def perturbed() -> Any:
    model = deepcopy(MODEL)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + torch.randn(parameter.shape, generator=generator))
    return model


OTHER = perturbed()


def text_of(model: Any, sampler: Any) -> str:
    return generate(model, TOKENIZER, chat_of(QUESTIONS[0]), sampler, gen_length=64).texts[0]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with right and wrong weights, next to a folder that is not below the root."""
    top = tmp_path_factory.mktemp("top")
    root = top / "root"
    for path in (root / "other", root / "old", root / "nan", root / "shape", top / "secret"):
        path.mkdir(parents=True)
        save_model(MODEL if path.name == "old" else OTHER, path)
    for name, change in (
        ("nan", lambda tensor: torch.full_like(tensor, torch.nan)),
        ("shape", lambda tensor: torch.ones(3, dtype=tensor.dtype)),
    ):
        file = root / name / "model.safetensors"
        weights = load_file(file)
        last = sorted(weights)[-1]
        save_file({**weights, last: change(weights[last])}, file, {"format": "pt"})
    (root / "pickled").mkdir()
    (root / "pickled" / "config.json").write_bytes((root / "old" / "config.json").read_bytes())
    (root / "pickled" / "pytorch_model.bin").write_bytes(b"x")
    (root / "linked").symlink_to(top / "secret", target_is_directory=True)
    (root / "inside").symlink_to(root / "other", target_is_directory=True)
    (root / "loop").symlink_to(root / "loop")
    (root / "file").mkdir()
    for file in (top / "secret").iterdir():
        (root / "file" / file.name).symlink_to(file)
    return root


@pytest.fixture
def server(folders: Path) -> Iterator[tuple[Any, Any, Any]]:
    """A client with the key, the service, and the model."""
    model = deepcopy(MODEL)
    decoders = {"default": decoder_of(model), "slow": decoder_of(model, SLOW)}
    with (
        served(decoders, limits=LIMITS, api_key="secret", weights_root=folders) as (url, service),
        httpx.Client(base_url=url, timeout=30.0, headers=KEY) as client,
    ):
        yield client, service, model


def asked(client: Any, **more: Any) -> str:
    body = {"messages": chat_of(QUESTIONS[0]), "max_tokens": 64, **more}
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


@pytest.mark.parametrize("name", ["other", "inside", "./other"])
def test_the_server_answers_with_its_new_weights(server: Any, name: str) -> None:
    client, _, model = server
    before, after = (text_of(source, ConfidenceThreshold(0.9)) for source in (MODEL, OTHER))
    assert before != after
    assert asked(client) == before
    response = client.post("/v1/weights", json={"folder": name})
    assert response.json() == {"object": "weights", "model": "mini", "version": version_of(OTHER)}
    assert version_of(model) == version_of(OTHER)
    assert asked(client) == after


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        ({"folder": "../secret"}, "invalid_folder", "'folder' must be the path of a folder"),
        ({"folder": "other/../../secret"}, "invalid_folder", "without '..'"),
        ({"folder": "/etc"}, "invalid_folder", "without '..'"),
        ({"folder": "."}, "invalid_folder", "without '..'"),
        ({"folder": "mini"}, "invalid_folder", "--weights-root"),
        ({"folder": "other\0"}, "invalid_folder", "must be the path"),
        ({"folder": "x" * 5000}, "invalid_folder", "must be the path"),
        ({"folder": "loop"}, "invalid_folder", "must be the path"),
        ({"folder": "linked"}, "invalid_folder", "without links that lead outside"),
        ({"folder": "file"}, "invalid_folder", "without links that lead outside"),
        ({"folder": "other/model.safetensors"}, "invalid_folder", "must be the path of a folder"),
        ({"folder": "nan"}, "invalid_weights", "finite"),
        ({"folder": "shape"}, "invalid_weights", "shape"),
        ({"folder": "pickled"}, "invalid_weights", "safetensors files only"),
        ({"folder": ""}, None, "must have a length of at least 1"),
        ({}, None, "'folder' must be given"),
        ({"folder": "other", "model": "gpt"}, "model_not_found", "is 'mini'"),
    ],
)
def test_wrong_requests_change_nothing(
    server: Any, folders: Path, body: Any, code: str | None, says: str
) -> None:
    client, _, model = server
    response = client.post("/v1/weights", json=body)
    assert response.status_code == (404 if code == "model_not_found" else 400), response.text
    error = response.json()["error"]
    assert error["code"] == code
    assert says in error["message"], error
    # The answer does not tell where the root is.
    assert str(folders.parent) not in response.text
    assert version_of(model) == version_of(MODEL)
    assert asked(client) == text_of(MODEL, ConfidenceThreshold(0.9))


def test_nobody_replaces_weights_without_the_key(server: Any) -> None:
    client, _, model = server
    for authorization in ("", "Bearer wrong", "secret", "Bearer secret2"):
        response = client.post(
            "/v1/weights", json={"folder": "other"}, headers={"authorization": authorization}
        )
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
    assert version_of(model) == version_of(MODEL)


def test_without_the_option_there_is_no_such_path() -> None:
    with (
        served(limits=LIMITS, api_key="secret") as (url, _),
        httpx.Client(base_url=url, headers=KEY) as client,
    ):
        response = client.post("/v1/weights", json={"folder": "other"})
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "not_found_error"


def test_rows_that_run_finish_on_the_old_weights(server: Any) -> None:
    client, service, _ = server
    body = {"folder": "other"}
    with ThreadPoolExecutor() as pool:
        running = pool.submit(asked, client, sampler="slow")
        wait_until(lambda: service.runner.num_running == 1)
        changing = pool.submit(client.post, "/v1/weights", json=body)
        wait_until(lambda: service.runner._change is not None)
        busy = client.post("/v1/weights", json=body)
        later = pool.submit(asked, client, sampler="slow")
        assert running.result() == text_of(MODEL, SLOW)
        assert changing.result().json()["version"] == version_of(OTHER)
        assert later.result() == text_of(OTHER, SLOW)
    assert busy.status_code == 409
    assert busy.json()["error"]["code"] == "weights_busy"


def test_wrong_weights_leave_rows_that_run_alone(server: Any) -> None:
    client, service, _ = server
    with ThreadPoolExecutor() as pool:
        running = pool.submit(asked, client, sampler="slow")
        wait_until(lambda: service.runner.num_running == 1)
        assert client.post("/v1/weights", json={"folder": "nan"}).status_code == 400
        assert running.result() == text_of(MODEL, SLOW)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--weights-root", "."], "must come with an api_key (--api-key)"),
        (["--weights-root", "nowhere", "--api-key", "k"], "--weights-root must be a folder"),
    ],
)
def test_the_option_needs_a_key_and_a_folder(
    capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert main(["serve", "--model", "mini", "--port", "0", *words]) == 2
    assert says in capsys.readouterr().err
