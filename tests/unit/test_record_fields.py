"""Records that are valid JSON and wrong all the same: the line is named, never a traceback."""

import json
from pathlib import Path
from typing import Any

import eval_runs
import pytest

from eval.reports.summary import summarise
from eval.runs.records import Folder
from eval.runs.runner import execute
from samplers import FixedSchedule

NULLABLE = ("git", "machine", "date", "error", "trace")
WRONG: tuple[Any, ...] = (None, "text", 1.5, True, [], [None], {}, -1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = eval_runs.runs(samplers=(FixedSchedule(8),), task="lists/shuffle?n=4&limit=3")
    return execute(runs, tmp_path_factory.mktemp("whole")).path


def spoilt(whole: Path, folder: Path, record: Any) -> Folder:
    lines = (whole / "part-0.jsonl").read_text().splitlines()
    (folder / "settings.json").write_bytes((whole / "settings.json").read_bytes())
    (folder / "part-0.jsonl").write_text(f"{lines[0]}\n{json.dumps(record)}\n{lines[2]}\n")
    return Folder(folder)


def test_every_field_that_is_missing_or_mistyped_is_named_with_its_line(
    whole: Path, tmp_path: Path
) -> None:
    """27 such cases ended in a traceback."""
    second = json.loads((whole / "part-0.jsonl").read_text().splitlines()[1])
    num_refused = 0
    for name, value in second.items():
        missing = {key: own for key, own in second.items() if key != name}
        for record in (missing, *({**second, name: wrong} for wrong in WRONG)):
            folder = spoilt(whole, tmp_path, record)
            try:
                summarise(folder)
            except ValueError as error:
                num_refused += 1
                text = str(error)
                assert text.startswith(("Line 2 of ", "The trace in line 2 of ")), text
                assert "part-0.jsonl" in text
                assert "move" in text
            else:
                kinds = {type(record[name]), type(value)}
                assert name in NULLABLE or len(kinds) == 1 or kinds == {int, float}, name
    assert num_refused > 5 * len(second)


@pytest.mark.parametrize("record", [None, 1, [], "text", {}, {"key": "a"}])
def test_a_line_that_is_no_record_is_named(whole: Path, tmp_path: Path, record: Any) -> None:
    with pytest.raises(ValueError, match=r"Line 2 of .*part-0\.jsonl must"):
        spoilt(whole, tmp_path, record).records()


def test_wrong_settings_are_named(whole: Path, tmp_path: Path) -> None:
    written = json.loads((whole / "settings.json").read_text())
    for name in written["runs"][0]:
        for wrong in ({}, 1.5j):
            run = {key: own for key, own in written["runs"][0].items() if key != name}
            if wrong == {}:
                run[name] = {}
            (tmp_path / "settings.json").write_text(json.dumps(written | {"runs": [run]}))
            with pytest.raises(ValueError, match=rf"Run 1 of .*settings\.json must have .*{name}"):
                Folder(tmp_path).settings()
    for content in ("[]", "1", "{", "[" * 100_000, '{"format": 4}', '{"format": 4, "runs": 1}'):
        (tmp_path / "settings.json").write_text(content)
        with pytest.raises(ValueError, match=r"settings\.json must"):
            Folder(tmp_path).settings()


def test_an_option_out_of_its_range_is_named_with_its_file(whole: Path, tmp_path: Path) -> None:
    written = json.loads((whole / "settings.json").read_text())
    run = written["runs"][0] | {"top_p": 0.0}
    (tmp_path / "settings.json").write_text(json.dumps(written | {"runs": [run]}))
    with pytest.raises(ValueError, match=r"^Run 1 of .*settings\.json: top_p must be in"):
        Folder(tmp_path).settings()
