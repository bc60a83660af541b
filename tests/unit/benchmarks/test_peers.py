import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import peer_process, peers
from benchmarks.frame import table_of
from benchmarks.peers import compare_with_peers, find_checkouts
from benchmarks.setting import Setting

ROOT = Path(__file__).parents[3]
TINY = Setting("tiny", prompt_length=12, gen_length=16, block_length=8, steps_per_block=8)
TINY = replace(TINY, batch_size=2, dtype="float32", num_threads=1)

# The names are those of Fast-dLLM; the answers are those of the plain loop.
GENERATE = """
import torch
from benchmarks.plain_loop import run_loop

def generate(model, prompt, *, steps, gen_length, block_length, temperature, mask_id):
    model()
    assert temperature == 0.0
    answer = run_loop(
        model.logits_of, prompt[0].tolist(), gen_length=gen_length, block_length=block_length,
        steps_per_block=steps * block_length // gen_length, mask_id=mask_id,
    )
    return torch.tensor([[*prompt[0].tolist(), *answer.tokens]]), answer.num_forwards

def generate_with_prefix_cache(model, prompt, **options):
    tokens, forwards = generate(model, prompt, **options)
    tokens[0, -3] += 1
    return tokens, forwards
"""
MODEL = """
import sys
import torch

sys.path.append({root!r})

class LLaDAModelLM(torch.nn.Module):
    @classmethod
    def from_pretrained(cls, folder, torch_dtype):
        from dllm_decode.models import load_model
        found = cls()
        found.inner, _ = load_model(folder, dtype=torch_dtype, device="cpu", tokenizer="optional")
        return found

    def forward(self):
        return None

    def logits_of(self, canvas):
        from dllm_decode import ForwardInputs
        columns = torch.arange(canvas.shape[1])[None]
        return self.inner.predict(ForwardInputs(canvas, columns, columns))
"""
MODES = dict.fromkeys(("generate", "generate_with_prefix_cache"), "NoCache(), NoVerifier()")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose second mode gets one token of each row wrong."""
    folder = tmp_path / "checkout" / "llada"
    (folder / "model").mkdir(parents=True)
    # The model is imported first, so that this package is found.
    (folder / "generate.py").write_text("import model.modeling_llada\n" + GENERATE)
    (folder / "model" / "modeling_llada.py").write_text(MODEL.format(root=str(ROOT)))
    monkeypatch.setitem(peers.PEERS, "fast-dllm", MODES)
    return tmp_path / "checkout"


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs contenders here, which is fast; returns the interpreters that were to run them."""
    interpreters = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        if command[0] == "git":
            return subprocess.CompletedProcess(command, 128, "", "not a repository")
        interpreters.append(command[0])
        with monkeypatch.context() as patch:
            patch.setattr(sys, "path", ["", *sys.path])
            peer_process.main(*command[2:])
        for name in ("generate", "model", "model.modeling_llada"):
            sys.modules.pop(name, None)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(peers.subprocess, "run", run)
    monkeypatch.setattr(peers, "call_in_own_process", lambda work, *arguments: work(*arguments))
    return interpreters


def test_tokens_of_a_peer_are_compared(checkout: Path, in_this_process: list[str]) -> None:
    checkouts = find_checkouts([f"fast-dllm={checkout}"])
    *_, rows = compare_with_peers(TINY, checkouts, "their-python", 2)
    assert [row["contender"] for row in rows] == [
        "fast-dllm: generate", MODES["generate"],
        "fast-dllm: generate_with_prefix_cache", MODES["generate"],
    ]  # fmt: skip
    assert [row["tokens"] for row in rows] == [None, "same", None, "4 of 64 differ"]
    assert in_this_process == ["their-python", sys.executable] * 4
    for row in rows:
        assert row["s"].low <= row["s"].value <= row["s"].high
        assert (row["rounds"], row["commit"]) == (2, "unknown")
        assert "transformers" in row["versions"]
    # Their calls are counted, one for each row of the stub; ours are those of a batch.
    assert [row["forwards"] for row in rows] == [2, 16, 2, 16]
    assert "4 of 64 differ" in table_of(rows)


def test_a_peer_that_fails_names_the_other_interpreter(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"got 1.*--peer-python"):
        peers._run({"contender": "fast-dllm"}, "false", tmp_path)


def test_peers_that_cannot_run_are_refused_first(checkout: Path, tmp_path: Path) -> None:
    for text in ("fast-dllm", "other=/tmp"):
        with pytest.raises(ValueError, match="must be NAME=PATH"):
            find_checkouts([text])
    with pytest.raises(ValueError, match=r"must have a file generate\.py"):
        find_checkouts([f"fast-dllm={tmp_path}"])
    assert find_checkouts([f"fast-dllm={checkout}"]) == {"fast-dllm": checkout / "llada"}
