"""guidellm as a client of the server, unmodified: pip install guidellm==0.8.1.

It brings 6 GB of packages, so that it may be in an environment of its own:
`PATH=$PATH:OTHER/bin pytest -m slow tests/e2e/test_serve_guidellm.py`.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from served import decoder_of, served

from dllm_decode import load_model
from dllm_decode.serve.limits import Limits

pytest.importorskip("fastapi", reason="needs the extra serve")
PROGRAM = shutil.which("guidellm")


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="needs the program guidellm on the PATH")
def test_guidellm_gets_an_answer_to_each_request(tmp_path: Path) -> None:
    model, tokenizer = load_model("mini")
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    limits = Limits(num_rows=8, max_tokens=64, gen_length=64)
    with served({"default": decoder_of(model)}, limits=limits) as (url, _):
        subprocess.run(
            [str(PROGRAM), "run", "--backend", f"kind=openai_http,target={url},model=mini",
             "--profile", "kind=concurrent,streams=4", "--constraint",
             "kind=max_requests,count=24", "--tokenizer",
             f"kind=huggingface_auto,model={tmp_path / 'tokenizer'}", "--data",
             "kind=synthetic_text,prompt_tokens=24,output_tokens=32", "--output",
             f"kind=json,path={tmp_path / 'report.json'}", "--disable-console"],
            cwd=tmp_path, env={**os.environ, "HF_HUB_OFFLINE": "1"}, check=True, timeout=250,
        )  # fmt: skip
    (found,) = json.loads((tmp_path / "report.json").read_text())["benchmarks"]
    answered = found["requests"]["successful"]
    assert len(answered) == 24
    assert {one["output_tokens"] for one in answered} == {32}
