"""The example that shows how to write a sampler: it runs, is short, and keeps the contract."""

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from eval_runs import write_model
from toys import HashModel

from dllm_decode import decode
from dllm_decode.models.loading.find import ASSETS

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_sampler.py"


def run(monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str]) -> None:
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *arguments])
    runpy.run_path(str(EXAMPLE), run_name="__main__")


def test_the_example_decodes_with_an_untrained_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, ["--model", str(write_model(tmp_path, 1.0))])
    assert "tokens in" in capsys.readouterr().out


@pytest.mark.skipif(not (ASSETS / "mini").is_dir(), reason="the model mini is not installed")
def test_the_example_answers_with_the_embedded_model_in_fewer_forwards_than_tokens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, [])
    tokens, _, _, forwards, _ = capsys.readouterr().out.splitlines()[-1].split()
    assert int(forwards) < int(tokens)


def test_the_example_is_shorter_than_45_lines() -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < 45


def test_its_sampler_commits_by_margin_and_ends() -> None:
    sampler = runpy.run_path(str(EXAMPLE))["MarginThreshold"]
    out = decode(HashModel(peak=14.0), [[1], [2, 3]], sampler(0.3), gen_length=16,
                 block_length=8, stop_at_eos=False)  # fmt: skip
    assert max(out.nfe.tolist()) < 16
    assert not torch.any(out.tokens == 23)
