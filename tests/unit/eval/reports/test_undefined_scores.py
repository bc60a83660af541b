"""A score that cannot be computed stays undefined up to the report, and never becomes 0."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import eval_runs
import pytest
from eval_runs import folder_of, table

from eval.reports.report import write_report
from eval.reports.summary import summarise
from eval.reports.terminal import report_folder
from eval.runs.runner import execute
from eval.runs.settings import Run
from eval.runs.task_addresses import Selection
from eval.tasks import Example, ListTask
from samplers import FixedSchedule, Sampler


@dataclass(frozen=True)
class Unscored(ListTask):
    """A task whose first score is undefined, as without an optional package."""

    scores_own_target = False

    def score(self, example: Example, text: str) -> Mapping[str, float | None]:
        return {"answer": None, "included": 0.0}


def unscored(*samplers: Sampler) -> list[Run]:
    """Runs on eight examples without a score."""
    selection = Selection("unscored", Unscored(n=4), limit=8)
    return [replace(run, selection=selection) for run in eval_runs.runs(samplers=samplers)]


def test_an_undefined_score_is_a_dash_and_not_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = execute(unscored(FixedSchedule(8), FixedSchedule(4)), tmp_path)
    assert all(record["scores"]["answer"] is None for record in folder.records())
    rows = summarise(folder).summary["rows"]
    assert [row["accuracy"] for row in rows] == [None, None]
    assert rows[0]["scores"]["answer"] is None
    assert rows[0]["scores"]["included"] == 0.0
    assert "accuracy" not in rows[1]["against_reference"]
    assert "step_speedup" in rows[1]["against_reference"]
    assert all("| - | - | - |" in line for line in table(rows).splitlines()[2:])
    assert report_folder(folder) == 0
    assert "AUP" not in capsys.readouterr().out.split("unscored\n")[1]


def test_an_error_beside_undefined_scores_is_no_accuracy_of_zero(tmp_path: Path) -> None:
    """Errors count as wrong; alone among undefined scores they made an accuracy of 0."""
    done = execute(unscored(FixedSchedule(8)), tmp_path / "done")
    *first, last = done.records()
    records = [*first, {**last, "error": "RuntimeError: no"}]
    row = summarise(folder_of(tmp_path / "failed", done.settings(), records)).summary["rows"][0]
    assert (row["num_records"], row["num_errors"]) == (8, 1)
    assert row["accuracy"] is None
    defined = [{**record, "primary": "included"} for record in records]
    other = folder_of(tmp_path / "defined", done.settings(), defined)
    assert summarise(other).summary["rows"][0]["accuracy"]["num_examples"] == 8


def test_a_report_does_not_need_the_files_of_the_task(tmp_path: Path) -> None:
    """The task's examples were read for a curve that only list tasks have."""
    file = tmp_path / "own.jsonl"
    file.write_text('{"prompt": "ask", "answer": "say"}\n')
    folder = execute(eval_runs.runs(task=f"jsonl:{file}"), tmp_path / "results")
    file.unlink()
    assert write_report(summarise(folder)).is_file()
