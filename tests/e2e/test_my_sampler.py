"""The example that shows how to write a sampler: it runs and keeps the contract."""

import runpy
import sys
from pathlib import Path

import pytest
import torch
from toys import HashModel

from dllm_decode import decode

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_sampler.py"


def test_the_example_answers_with_the_embedded_model_in_fewer_forwards_than_tokens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    tokens, _, _, forwards, _ = capsys.readouterr().out.splitlines()[-1].split()
    assert int(forwards) < int(tokens)


def test_its_sampler_commits_by_margin_and_ends() -> None:
    sampler = runpy.run_path(str(EXAMPLE))["MarginThreshold"]
    out = decode(HashModel(peak=14.0), [[1], [2, 3]], sampler(0.3), gen_length=16,
                 block_length=8, stop_at_eos=False)  # fmt: skip
    assert max(out.nfe.tolist()) < 16
    assert not torch.any(out.tokens == 23)
