"""The evaluation harness as a client of the server, next to `eval lm` on the same documents."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from eval_runs import write_tasks
from served import decoder_of, served

from dllm_decode import load_model
from dllm_decode.serve.limits import Limits

pytest.importorskip("lm_eval", reason="needs the extra lm-eval")
pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("tenacity", reason="the harness asks servers through it")

ROOT = Path(__file__).parents[2]
LIMITS = Limits(num_rows=8, max_tokens=128, gen_length=64)


def answers_in(out: Path) -> dict[int, str]:
    """The answers by document, from wherever below a folder the harness has written them."""
    (samples,) = out.rglob("samples_words_generate*.jsonl")
    lines = [json.loads(line) for line in samples.read_text().splitlines()]
    return {line["doc_id"]: line["resps"][0][0] for line in lines}


@pytest.mark.slow
@pytest.mark.parametrize("sends", ["text", "ids"])
def test_over_http_each_answer_is_that_of_the_command(tmp_path: Path, sends: str) -> None:
    """The command rounds a canvas up to whole blocks, so the task asks for whole blocks."""
    tasks = write_tasks(tmp_path / "tasks", 24)
    task = tasks / "words_generate.yaml"
    task.write_text(task.read_text().replace("max_gen_toks: 40", "max_gen_toks: 64"))
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    common = ["--tasks", "words_generate", "--include_path", str(tasks), "--output_path"]
    model, tokenizer = load_model("mini")
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    with served({"default": decoder_of(model)}, limits=LIMITS) as (url, _):
        options = {
            "model": "mini", "base_url": f"{url}/v1/completions", "num_concurrent": "8",
            "tokenized_requests": str(sends == "ids"), "tokenizer_backend": "huggingface",
            "tokenizer": str(tmp_path / "tokenizer"), "max_retries": "1",
        }  # fmt: skip
        written = ",".join(f"{name}={value}" for name, value in options.items())
        subprocess.run(
            [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args",
             written, *common, str(tmp_path / "http"), "--log_samples"],
            cwd=tmp_path, env=environment, check=True, timeout=250,
        )  # fmt: skip
    subprocess.run(
        [sys.executable, "-m", "eval", "lm", "--model", "mini", "--sampler",
         "ConfidenceThreshold(0.9)", "--gen-length", "64", "--tasks", "words_generate",
         "--include-path", str(tasks), "--dtype", "float32", "--output", str(tmp_path / "own")],
        cwd=ROOT, env=environment, check=True, timeout=250,
    )  # fmt: skip
    assert answers_in(tmp_path / "http") == answers_in(tmp_path / "own")
