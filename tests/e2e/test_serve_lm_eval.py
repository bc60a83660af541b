"""The evaluation harness as a client of the server."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from eval_runs import write_tasks
from served import chat_of, decoder_of, served

from dllm_decode import generate, load_model
from dllm_decode.serve.limits import Limits
from samplers import ConfidenceThreshold

pytest.importorskip("lm_eval", reason="needs the extra lm-eval")
pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("tenacity", reason="the harness asks servers through it")

ROOT = Path(__file__).parents[2]
LIMITS = Limits(num_rows=8, max_tokens=128, gen_length=64)


def answers_in(out: Path) -> dict[int, str]:
    """Returns the answers by document; the harness writes them somewhere below the folder."""
    (samples,) = out.rglob("samples_words_generate*.jsonl")
    lines = [json.loads(line) for line in samples.read_text().splitlines()]
    return {line["doc_id"]: line["resps"][0][0] for line in lines}


ENVIRONMENT = {
    **os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "PYTHONPATH": str(ROOT)
}  # fmt: skip


def over_http(tasks: Path, out: Path, *, path: str, tokenizer: Path, **more: str) -> dict[int, str]:
    """Returns the answers that the unmodified harness gets from a server."""
    model, _ = load_model("mini")
    with served({"default": decoder_of(model)}, limits=LIMITS) as (url, _):
        options = {
            "model": "mini", "base_url": f"{url}{path}", "num_concurrent": "8", "max_retries": "1",
            "tokenizer_backend": "huggingface", "tokenizer": str(tokenizer), **more,
        }  # fmt: skip
        is_chat = path.endswith("chat/completions")
        words = ["--apply_chat_template"] if is_chat else []
        kind = "local-chat-completions" if is_chat else "local-completions"
        written = ",".join(f"{name}={value}" for name, value in options.items())
        subprocess.run(
            [sys.executable, "-m", "lm_eval", "run", "--model", kind, "--model_args", written,
             "--tasks", "words_generate", "--include_path", str(tasks), "--output_path", str(out),
             "--log_samples", *words],
            cwd=out.parent, env=ENVIRONMENT, check=True, timeout=250,
        )  # fmt: skip
    return answers_in(out)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer, and with a task whose answers are whole blocks of a canvas."""
    path = tmp_path_factory.mktemp("harness")
    task = write_tasks(path / "tasks", 24) / "words_generate.yaml"
    task.write_text(task.read_text().replace("max_gen_toks: 40", "max_gen_toks: 64"))
    load_model("mini")[1].save_pretrained(path / "tokenizer")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("sends", ["text", "ids", "chats"])
def test_over_http_each_answer_is_that_of_the_model(
    folder: Path, tmp_path: Path, sends: str
) -> None:
    """Texts and ids are sent as they are; chats are put into the template."""
    more = {} if sends == "chats" else {"tokenized_requests": str(sends == "ids")}
    answers = over_http(
        folder / "tasks", tmp_path / "http", tokenizer=folder / "tokenizer",
        path="/v1/chat/completions" if sends == "chats" else "/v1/completions", **more,
    )  # fmt: skip
    model, tokenizer = load_model("mini")
    lines = (folder / "tasks" / "problems.jsonl").read_text().splitlines()
    texts = [f"{json.loads(line)['question']} answer :" for line in lines]
    chats, ids = map(chat_of, texts), (tokenizer(text).input_ids for text in texts)
    inputs = list(chats if sends == "chats" else ids)
    output = generate(model, tokenizer, inputs, ConfidenceThreshold(0.9), gen_length=64)
    assert answers == dict(enumerate(output.texts))
