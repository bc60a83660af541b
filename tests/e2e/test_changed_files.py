"""Answers of old weights, filters and targets are not taken for those of changed ones."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import eval_runs
import pytest
from eval_runs import write_model

from dllm_decode import load_model, load_target
from dllm_decode.settings import files
from dllm_decode.settings.files import digest_of_file
from dllm_decode.verify import ARVerify, Guided
from eval.commands import evaluate as main
from eval.runs.provenance import CODE_NOTE, FILES_NOTE, files_of
from eval.runs.runner import execute
from samplers import CreditDecoding, Learn2PD


def run(model: Path, out: Path) -> int:
    return main([
        "run", "lists/shuffle?n=3&limit=2", str(out), "--model", str(model), "--sampler",
        "FixedSchedule(4)", "--gen-length", "8", "--block-length", "4",
    ])  # fmt: skip


def test_overwritten_weights_are_not_given_their_old_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The old records were shown again without a word: only the name told models apart."""
    model, out = write_model(tmp_path / "model"), tmp_path / "out"
    assert run(model, out) == 0
    note = out / FILES_NOTE
    noted = json.loads(note.read_text())
    (names,) = [list(digests) for digests in noted.values()]
    assert {"model/config.json", "model/tokenizer.json", "model/model.safetensors"} <= set(names)
    assert not (out / CODE_NOTE).exists()
    # Equal files that were written at another time are the same model.
    shutil.copytree(model, tmp_path / "copy")
    shutil.rmtree(model)
    shutil.move(tmp_path / "copy", model)
    os.utime(model / "model.safetensors", (1, 1))
    assert run(model, out) == 0
    # An old folder without the note goes on and gets it.
    note.unlink()
    assert run(model, out) == 0
    assert json.loads(note.read_text()) == noted
    write_model(model, 10.0)
    capsys.readouterr()
    assert run(model, out) == 2
    error = capsys.readouterr().err
    assert f"{model / 'model.safetensors'} must be as it was when the records in {out}" in error
    assert "it was changed since, so that old and new answers would be mixed." in error
    assert "Choose another folder." in error
    # With the old weights back, the old answers are right again.
    write_model(model)
    assert run(model, out) == 0
    (model / "generation_config.json").unlink(missing_ok=True)
    (model / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert run(model, out) == 2
    assert "must be as it was" in capsys.readouterr().err


def test_a_run_that_names_no_files_goes_on_in_a_folder_that_knows_them(tmp_path: Path) -> None:
    (filtered,) = eval_runs.runs(samplers=(Learn2PD("mini", 0.5),))
    (tmp_path / "config.json").write_text("{}")
    named = replace(filtered, files=(tmp_path / "config.json",))
    assert list(files_of(named)) == ["model/config.json", "sampler/learn2pd-mini.safetensors"]
    (plain,) = eval_runs.runs()[:1]
    out = tmp_path / "out"
    records = execute([replace(plain, files=named.files)], out).records()
    assert execute([plain], out).records() == records
    # The note was kept.
    (tmp_path / "config.json").write_text("{1}")
    both = execute(eval_runs.runs()[1:], out)
    with pytest.raises(ValueError, match=r"config\.json must be as it was .*another folder\."):
        execute([replace(plain, files=named.files)], out)
    assert [len(run_records) for run_records in both.results().values()] == [len(records)] * 2


def test_models_targets_and_wrapped_filters_say_what_they_were_read_from() -> None:
    model, tokenizer = load_model("mini")
    assert {file.name for file in model.files} >= {
        "config.json", "tokenizer.json", "model.safetensors", "chat_template.jinja",
    }  # fmt: skip
    assert all(file.is_file() for file in model.files)
    target = load_target("mini-ar", tokenizer)
    assert target.files
    assert ARVerify(target).files == Guided(target).files == target.files
    assert CreditDecoding(Learn2PD()).files == Learn2PD().files
    (run,) = eval_runs.runs(samplers=(Learn2PD(),))
    # A filter that is not asked decides nothing.
    names = files_of(replace(run, verifier=Guided(target)))
    assert {name.partition("/")[0] for name in names} == {"verifier"}


def test_large_files_are_known_by_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_NUM_PIECES", 4)
    monkeypatch.setattr(files, "_PIECE_BYTES", 2)
    file = tmp_path / "weights"

    def digest(contents: bytes) -> str:
        file.write_bytes(contents)
        return digest_of_file(file)

    # Up to 8 bytes every byte counts; of 20 the pieces at 0, 6, 12 and 18.
    assert len({digest(bytes(i == k for i in range(8))) for k in range(9)}) == 9
    changed = {
        k for k in range(20) if digest(bytes(i == k for i in range(20))) != digest(bytes(20))
    }
    assert changed == {0, 1, 6, 7, 12, 13, 18, 19}
    assert digest(bytes(21)) != digest(bytes(20))
    assert digest(b"") != digest(b"\0")
