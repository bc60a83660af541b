"""The command that trains a Learn2PD filter writes a filter that decodes, and judges it."""

import json
from pathlib import Path

import pytest
import torch
from eval_runs import interrupted
from safetensors.torch import load_file

from dllm_decode import decode, load_model
from dllm_decode.cli.main import main
from eval.training import filter_command, questions
from samplers import Learn2PD
from samplers.learn2pd import load_filter


def options(output: Path) -> list[str]:
    return [
        *("--task", "word_problems?split=train&limit=12", "--output", str(output)),
        *("--gen-length", "24", "--block-length", "12", "--steps", "30", "--threshold", "0.6"),
        *("--truncate-at-eos", "--batch-size", "5"),
    ]


def test_a_filter_is_trained_judged_and_decodes_and_a_killed_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, killed = tmp_path / "whole.safetensors", tmp_path / "killed.safetensors"
    assert main(["train-filter", *options(whole)]) == 0
    shown = capsys.readouterr().out
    assert "held-out: accuracy" in shown
    report = json.loads(whole.with_suffix(".json").read_text())
    assert report["sampler"] == repr(Learn2PD(str(whole), 0.6))
    assert report["held_out"]["num_examples"] == 2
    assert report["low"] <= report["accuracy"] <= report["high"]
    assert 0 < report["forwards"] <= 24
    model, _ = load_model("mini")
    assert load_filter(str(whole)).fingerprint == model.fingerprint
    out = decode(model, [[5, 6]], Learn2PD(str(whole)), gen_length=24, block_length=12)
    assert 0 < out.forwards <= 24

    collect = filter_command.collect_examples
    monkeypatch.setattr(filter_command, "collect_examples", interrupted(collect, at=2))
    assert main(["train-filter", *options(killed)]) == 130
    assert "the same command goes on from here" in capsys.readouterr().err
    monkeypatch.setattr(filter_command, "collect_examples", collect)
    assert main(["train-filter", *options(killed)]) == 0
    for name, value in load_file(whole).items():
        assert torch.equal(load_file(killed)[name], value)
    changed = [*options(killed), "--hidden", "5"]
    assert main(["train-filter", *changed]) == 2
    assert "got others: hidden_sizes: [32] -> [5]. Choose" in capsys.readouterr().err
    # The weights at the address have changed: the filter was stamped with the new model.
    monkeypatch.setattr(questions, "fingerprint_of", lambda model: "another")
    assert main(["train-filter", *options(killed)]) == 2
    assert f"model digest: {model.fingerprint} -> another. Choose" in capsys.readouterr().err


def test_a_filter_that_diverges_is_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The untrained network was written and judged, as if it were a filter."""
    output = tmp_path / "wild.safetensors"
    assert main(["train-filter", *options(output), "--learning-rate", "1e30"]) == 2
    assert "The loss must be finite, got " in capsys.readouterr().err
    assert not output.exists()
