"""Wrong records in valid JSON: the message names the line, and is never a traceback."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import eval_runs
import pytest

from eval.commands import evaluate as main
from eval.reports.summary import summarise
from eval.runs.folder import Folder
from eval.runs.runner import execute
from samplers import FixedSchedule

RUNS = partial(eval_runs.runs, samplers=(FixedSchedule(8),), task="lists/shuffle?n=4&limit=3")
NULLABLE = ("git", "machine", "date", "error", "trace")
WRONG: tuple[Any, ...] = (None, "text", 1.5, True, [], [None], {}, -1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return execute(RUNS(), tmp_path_factory.mktemp("whole")).path


def spoilt(whole: Path, folder: Path, record: Any) -> Folder:
    lines = (whole / "part-0.jsonl").read_text().splitlines()
    (folder / "settings.json").write_bytes((whole / "settings.json").read_bytes())
    (folder / "part-0.jsonl").write_text(f"{lines[0]}\n{json.dumps(record)}\n{lines[2]}\n")
    return Folder(folder)


def test_each_missing_or_mistyped_field_is_named_with_its_line(whole: Path, tmp_path: Path) -> None:
    """27 such cases ended in a traceback."""
    second = json.loads((whole / "part-0.jsonl").read_text().splitlines()[1])
    num_refused = 0
    for name, value in second.items():
        missing = {key: entry for key, entry in second.items() if key != name}
        for record in (missing, *({**second, name: wrong} for wrong in WRONG)):
            folder = spoilt(whole, tmp_path, record)
            try:
                summarise(folder)
            except ValueError as error:
                num_refused += 1
                text = str(error)
                assert text.startswith("Line 2 of "), text
                assert "part-0.jsonl" in text
                assert "move" in text
            else:
                kinds = {type(record[name]), type(value)}
                assert name in NULLABLE or len(kinds) == 1 or kinds == {int, float}, name
    assert num_refused > 5 * len(second)


def test_wrong_settings_are_named(whole: Path, tmp_path: Path) -> None:
    written = json.loads((whole / "settings.json").read_text())
    run = written["runs"][0]
    for wrong in ({**run, "task": {}}, {key: entry for key, entry in run.items() if key != "task"}):
        (tmp_path / "settings.json").write_text(json.dumps(written | {"runs": [run, wrong]}))
        with pytest.raises(ValueError, match=r"Run 2 of .*settings\.json must have .*task"):
            Folder(tmp_path).settings()
    (tmp_path / "settings.json").write_text(json.dumps(written | {"runs": [run | {"top_p": 0.0}]}))
    with pytest.raises(ValueError, match=r"^Run 1 of .*settings\.json: top_p must be in"):
        Folder(tmp_path).settings()
    for content in ("[]", "{", "[" * 100_000, '{"format": 5}', '{"format": 5, "runs": 1}'):
        (tmp_path / "settings.json").write_text(content)
        with pytest.raises(ValueError, match=r"settings\.json must"):
            Folder(tmp_path).settings()


@pytest.mark.parametrize(
    ("part", "damage"),
    [
        ("pieces", {"5": "a"}),
        ("trace", {"revisions": [[1, 2, 3]]}),
        ("trace", {"runners_up": [[0.5, [[10_000, 0.5]]]]}),
        ("prompt", "a\ud800b"),
        ("scores", {"answer": -1}),
    ],
    ids=str,
)
def test_damaged_traces_are_named(part: str, damage: Any, whole: Path, tmp_path: Path) -> None:
    """A token without a piece was a KeyError, half a surrogate pair a half-written report."""
    record = json.loads((whole / "part-0.jsonl").read_text().splitlines()[1])
    record[part] = record[part] | damage if part == "trace" else damage
    folder = spoilt(whole, tmp_path, record)
    with pytest.raises(ValueError, match=r"^Line 2 of .*part-0\.jsonl must .* its example anew"):
        folder.records()


def test_a_byte_that_is_no_text_is_named_with_its_line(whole: Path, tmp_path: Path) -> None:
    """It was replaced by a question mark, in a prompt or in an answer."""
    folder = spoilt(whole, tmp_path, {})
    written = (whole / "part-0.jsonl").read_bytes()
    (folder.path / "part-0.jsonl").write_bytes(written.replace(b'"prompt":"', b'"prompt":"\xff'))
    with pytest.raises(ValueError, match=r"Line 1 of .*part-0\.jsonl must be JSON"):
        folder.records()


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copied"))


def test_records_of_no_setting_come_back(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A character of settings.json was changed: all records of the setting left the report."""
    settings = copied / "settings.json"
    written = settings.read_text()
    settings.write_text(written.replace('"batch_size": 4', '"batch_size": 5'))
    for command in ("report", "trace"):
        assert main([command, str(copied)]) == 2
        message = capsys.readouterr().err
        assert f"Line 1 of {copied / 'part-0.jsonl'} (and 2 other lines) must be of a" in message
        assert str(settings) in message
    execute(RUNS(), copied)
    assert settings.read_text() == written
    assert [len(records) for records in Folder(copied).results().values()] == [3]


@pytest.mark.parametrize("name", ["settings", "key", "example"])
def test_a_record_that_is_not_of_its_setting_is_named(name: str, copied: Path, whole: Path) -> None:
    record = json.loads((whole / "part-0.jsonl").read_text().splitlines()[1])
    record[name] = f"{record[name][:-1]}x"
    with pytest.raises(ValueError, match=r"^Line 2 of .*part-0\.jsonl must be of a setting"):
        spoilt(whole, copied, record).results()


@pytest.mark.parametrize("content", ["[", '{"a": {"b": 1}}', "[" * 100_000])
@pytest.mark.parametrize("name", ["own_files.json", "own_code.json"])
def test_a_damaged_note_of_origins_is_named(name: str, content: str, copied: Path) -> None:
    """It was a traceback when the run was given again."""
    (copied / name).write_text(content)
    with pytest.raises(ValueError, match=rf"{name} must .*; it says which code"):
        execute(RUNS(), copied)


def test_a_table_names_its_commits(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only summary.json said that records were decoded by different code."""
    lines = (copied / "part-0.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    for record, commit in zip(records, ("a" * 40, "b" * 40 + "+", None), strict=True):
        record["git"] = commit
    (copied / "part-0.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    assert main(["report", str(copied), "--replays", "0"]) == 0
    commits = "aaaaaaaaaa and bbbbbbbbbb+ and unknown"
    assert commits in capsys.readouterr().out
    assert commits in (copied / "report.html").read_text()
