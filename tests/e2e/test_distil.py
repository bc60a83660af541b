"""The command that distils writes a model, and its forwards and accuracy."""

import json
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState
from eval_runs import interrupted
from processes import in_two_processes

from dllm_decode import load_model
from dllm_decode.cli.main import main
from eval.training import distil_command, questions, teacher_answers


def options(output: Path, *more: str) -> list[str]:
    return [
        "--model", "mini?family=llada", "--task", "word_problems?limit=6", "--output", str(output),
        "--gen-length", "48", "--held-out", "word_problems?split=val&limit=2", "--block-length",
        "16", "--epochs", "1.5", "--rows", "2", "--forwards", "1", "--learning-rate", "0.0003",
        "--evaluate-every", "2", *more,
    ]  # fmt: skip


def distil(*words: str) -> int:
    # Accelerate keeps one precision for each process.
    AcceleratorState._reset_state(reset_partial_state=True)
    return main(["distil", *words])


def test_a_model_is_distilled_and_a_killed_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert distil(*options(whole, "--muon", "0.001")) == 0
    shown = capsys.readouterr().out
    assert "the teacher is right on" in shown
    assert "before: accuracy" in shown
    assert "after: accuracy" in shown
    report = json.loads((whole / "training.json").read_text())
    assert report["held_out"]["num_examples"] == 2
    assert report["before"]["forwards"] > 0
    assert report["after"] == {name: report["history"][-1][name] for name in report["after"]}
    assert report["history"][0]["samples"] == 0.0
    assert len(report["history"]) >= 3

    score_held_out = distil_command.score_held_out
    monkeypatch.setattr(distil_command, "score_held_out", interrupted(score_held_out, at=3))
    assert distil(*options(killed, "--muon", "0.001")) == 130
    monkeypatch.setattr(distil_command, "score_held_out", score_held_out)
    monkeypatch.delattr(teacher_answers, "ask")
    assert distil(*options(killed, "--muon", "0.001")) == 0
    (trained, _), (resumed, _), (teacher, _) = (
        load_model(source) for source in (whole / "model", killed / "model", "mini")
    )
    changed = 0
    for first, second, before in zip(
        trained.parameters(), resumed.parameters(), teacher.parameters(), strict=True
    ):
        assert torch.equal(first, second)
        changed += not torch.equal(first, before)
    assert changed > 10
    assert distil(*options(killed, "--method", "d3llm")) == 2
    shown = capsys.readouterr().err
    assert "got others: method: dparallel -> d3llm, muon: 0.001 -> unset. Choose" in shown
    # The last measurement of a finished run is removed, as the error about a damaged one says.
    last = killed / "after.json"
    scores = last.read_text()
    last.unlink()
    assert distil(*options(killed, "--muon", "0.001")) == 0
    assert last.read_text() == scores
    # The weights at the address have changed: the run went on with both models.
    capsys.readouterr()
    monkeypatch.setattr(questions, "fingerprint_of", lambda model: "another")
    assert distil(*options(killed, "--muon", "0.001")) == 2
    assert f"model digest: {teacher.fingerprint} -> another. Choose" in capsys.readouterr().err


def test_wrong_answers_are_kept_by_the_option_that_the_error_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next command was refused: keep_wrong was False and is True."""
    # No answer ends in so few tokens.
    words = options(tmp_path / "run", "--gen-length", "16")
    assert distil(*words) == 2
    assert "or pass --keep-wrong" in capsys.readouterr().err
    monkeypatch.delattr(teacher_answers, "ask")
    assert distil(*words, "--keep-wrong", "--epochs", "0.5") == 0


@pytest.mark.parametrize("plugin", ["deepspeed", "fsdp"])
def test_a_launch_that_splits_weights_is_refused_before_the_model_is_loaded(
    plugin: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model was loaded, and then the package was missing."""
    monkeypatch.setenv(f"ACCELERATE_USE_{plugin.upper()}", "true")
    monkeypatch.delattr(distil_command, "Student")
    assert distil(*options(tmp_path)) == 2
    assert f"--use_{plugin} must be left out, got it from" in capsys.readouterr().err


@pytest.mark.slow
def test_lora_writes_an_adapter_of_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("peft")
    folder = tmp_path / "run"
    more = ("--lora-rank", "4", "--method", "d3llm", "--keep-wrong", "--precision", "bf16")
    assert distil(*options(folder, *more)) == 0
    model, _ = load_model("mini", adapter=folder / "adapter")
    plain, _ = load_model("mini")
    assert not torch.equal(
        model.transformer.layers[0].attention.qkv.weight,
        plain.transformer.layers[0].attention.qkv.weight,
    )
    assert json.loads((folder / "adapter" / "adapter_config.json").read_text())["r"] == 4
    assert not (folder / "model").exists()


@pytest.mark.slow
def test_a_refusal_ends_every_process(tmp_path: Path) -> None:
    """The first process ended, and the others waited for it."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("mine")
    outcomes = in_two_processes("-m", "dllm_decode", "distil", *options(tmp_path / "run"))
    assert [code for code, _ in outcomes] == [2, 2]
    assert "--output must be new or hold a run" in outcomes[0][1]
    assert "must be" not in outcomes[1][1]


def test_a_run_that_diverges_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It ended in a traceback."""
    words = options(tmp_path / "run", "--evaluate-every", "100", "--learning-rate", "1e8")
    assert distil(*words) == 2
    assert "must be finite, got " in capsys.readouterr().err
    assert not (tmp_path / "run" / "model").exists()
