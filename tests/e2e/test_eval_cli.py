"""The command line on a tiny random model with the embedded models' tokenizer."""

import json
import sys
from pathlib import Path
from typing import NoReturn

import pytest
from eval_runs import write_model

from eval.commands import evaluate as main
from eval.runs.folder import Folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("tiny")))


def test_run_report_and_trace(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    command = ["run", "lists/shuffle?n=3&limit=4", out, "--model", tiny, "--batch-size", "3",
               "--block-length", "8", "--sampler", "FixedSchedule(4)", "--sampler",
               "ConfidenceThreshold(0.5)"]  # fmt: skip
    assert main(command) == 0
    shown = capsys.readouterr()
    assert "| **`FixedSchedule(4)`** |" in shown.out
    assert "4/4 accuracy" in shown.err
    assert len(Folder(out).records()) == 8
    assert main(command) == 0
    assert len(Folder(out).records()) == 8
    assert main(["report", out, "--replays", "1"]) == 0
    assert len(list(Path(out).glob("replay-*.html"))) >= 1
    capsys.readouterr()
    assert main(["trace", out]) == 0
    assert "target: [" in capsys.readouterr().out
    assert main(["trace", out, "--example", "nonsense"]) == 2
    assert main([*command, "--temperature", "0.7"]) == 0
    shown = capsys.readouterr()
    assert "holds 2 other settings" in shown.err
    assert "temperature=0.7" in shown.out
    assert len(Folder(out).settings()) == 4
    # Because another setting was unfinished, no report was written.
    part = Path(out) / "part-0.jsonl"
    part.write_text("".join(part.read_text().splitlines(keepends=True)[:-1]))
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "Report: " in shown
    assert shown.startswith("Unfinished: 1 of 16 ")


def test_words_that_the_tokenizer_does_not_know_are_named_once(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only `generate` warned of such words; runs were measured on questions half unread."""
    questions = [f"emma has {number} apples ." for number in range(3)]
    questions += ["zorblax has 3 apples .", "wugs and zorblax has 4 apples ."]
    file = tmp_path / "own.jsonl"
    lines = [json.dumps({"prompt": question, "answer": "3"}) for question in questions]
    file.write_text("\n".join(lines))
    command = ["run", f"jsonl:{file}?gen_length=8", str(tmp_path / "out"), "--model", tiny,
               "--sampler", "FixedSchedule(4)", "--sampler", "Factor(1.0)"]  # fmt: skip
    assert main(command) == 0
    warned = [line for line in capsys.readouterr().err.splitlines() if line.startswith("WARNING")]
    assert warned == [
        f"WARNING: jsonl:{file}?gen_length=8, model {tiny}: These words are not known to the "
        "tokenizer: zorblax, wugs. The model reads '<|unknown|>' for each. They occur in 2 of 5 "
        "prompts (40%)."
    ]
    file.write_text("\n".join(lines[:3]))
    assert main(command) == 0
    assert "WARNING" not in capsys.readouterr().err


def test_verifiers_are_compared_with_plain_decoding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each verifier runs on the embedded models, whose drafts are good."""
    out = tmp_path / "out"
    command = ["run", "word_problems?split=test&limit=2", str(out), "--block-length", "32",
               "--sampler", "FixedSchedule(8)", "--gen-length", "64",
               "--verifier", "NoVerifier()", "--verifier", "SelfVerify(4)",
               "--verifier", "Guided(CausalTarget('mini-ar'))", "--verifier",
               "ARVerify(CausalTarget('mini-ar'), DraftLength(8, 16), PathSearch(2))"]  # fmt: skip
    assert main(command) == 0
    assert "Loading weights" not in capsys.readouterr().err
    rows = json.loads((out / "summary.json").read_text())["rows"]
    plain, self_verify, guided, causal = rows
    assert "verified" not in plain
    assert self_verify["accuracy"] == plain["accuracy"]
    assert self_verify["speed"]["nfe"] < plain["speed"]["nfe"]
    assert self_verify["verified"]["tokens_per_target_forward"] is None
    for row in (guided, causal):
        assert row["speed"]["target_nfe"] == row["speed"]["nfe"]
        assert row["verified"]["tokens_per_target_forward"] > 4
    for row in (self_verify, guided, causal):
        verified, speed = row["verified"], row["speed"]
        assert 0 < verified["acceptance_rate"] < 1
        gains = {int(size): count for size, count in verified["accepted_lengths"].items()}
        assert sum(size * count for size, count in gains.items()) == 2 * speed["committed"]
    assert main(["report", str(out)]) == 0
    report = capsys.readouterr().out
    assert "| target NFE |" in report
    assert "+ SelfVerify()" in report
    # ARVerify asks no sampler, so none is named.
    assert "ARVerify(CausalTarget('mini-ar')" in report
    assert "| ARVerify | 1 |" in report
    assert "ARVerify(CausalTarget(" in next(out.glob("replay-*.html")).read_text()
    assert main(["trace", str(out)]) == 0
    assert "of the target, result decided at step " in capsys.readouterr().out


def test_the_oracle_needs_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["oracle", "lists/shuffle?n=4", "--rows", "50", "--sampler", "Factor(0.9)"]) == 0
    shown = capsys.readouterr().out
    assert "3.415 bits" in shown
    assert "4 a step: accuracy 0.0938 = 3/32" in shown
    assert "Factor(0.9): accuracy 1.000" in shown
    assert main(["oracle", "word_problems"]) == 2
    assert "closed form" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["oracle", "lists/copy?limit=2"], "limit= must be left out, because the oracle takes one"),
        (["sweep", ".", "out"], "must be a TOML file, got ., which is a folder"),
        (["run", "jsonl:", "out"], "jsonl:FILE must name a file of examples, got no such file: ''"),
        (["run", "lists/copy?limit=1", "file/out"], "must be a folder, or be new"),
        (["run", "lists/copy", "out", "--batch-size", f"{10**20}"], "must be at most 2147483647"),
        (["run", "lists/copy", "out", "--threads", "100000"], "must be at most 1024, got 100000"),
        (["run", "jsonl:halves", "out"], "Line 1 of halves must be JSON, got"),
        (["run", "jsonl:latin", "out"], "latin must be JSON lines or a JSON list in UTF-8"),
        (["sweep", "rows.toml", "out"], "rows.toml: batch_size must be at least 1, got 0"),
        (["report", "nowhere", "--replays", "-1"], "must be at least 0, got -1"),
        (["calibrate", "lists/copy", "out", "--card", "no/a.json"], "--card must be a file in a"),
        (["lm", "--tasks", " ,"], "must name at least one task"),
        (["lm", "--tasks", "any", "--limit", "nan"], "must be above 0, got nan"),
        (["lm", "--tasks", "any", "--output", "file"], "must be a folder, or be new"),
    ],
)
def test_mistakes_are_answered_in_a_sentence(
    command: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """These errors come before a model is loaded; several came after decoding, or never."""
    if command[0] == "lm":
        pytest.importorskip("lm_eval")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dllm_decode.settings.models.load_model", _no_model)
    (tmp_path / "file").write_text("")
    (tmp_path / "halves").write_text('{"prompt": "a\\ud800", "answer": "b"}\n')
    (tmp_path / "latin").write_bytes(b'{"prompt": "\xe9", "answer": "b"}\n')
    sweep = 'model = "mini"\ntasks = ["lists/copy"]\nsamplers = ["FixedSchedule()"]\n'
    (tmp_path / "rows.toml").write_text(f"{sweep}batch_size = 0\n")
    before = set(tmp_path.iterdir())
    # argparse leaves the process.
    with pytest.raises(SystemExit, match=r"^2$"):
        sys.exit(main(command))
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert set(tmp_path.iterdir()) == before


def _no_model(**options: object) -> NoReturn:
    raise AssertionError("A model was loaded.")
