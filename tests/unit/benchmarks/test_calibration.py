"""The check of calibrations: against known truth, and resumed without decoding anything anew."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.calibration import draw, main
from eval.studies.ladders import LADDERS
from eval.studies.procedure import Guarantee


def scores(*num_lost: int) -> np.ndarray:
    """The reference is always right; each setting loses on its first so many of 1,000 prompts."""
    found = np.ones((1 + len(num_lost), 1000))
    for own, lost in zip(found[1:], num_lost, strict=True):
        own[:lost] = 0.0
    return found


def test_drawn_calibrations_choose_the_fastest_setting_that_keeps_the_promise() -> None:
    assert draw((300, 500), Guarantee(), scores(0, 500), [1.0, 3.0, 9.0]) == (0, 3.0)
    # After a setting that loses too much no other is reached.
    assert draw((300, 500), Guarantee(), scores(500, 0), [1.0, 3.0, 9.0]) == (0, 1.0)


@pytest.mark.slow
def test_the_command_resumes_and_decodes_nothing_twice(tmp_path: Path) -> None:
    command = [
        str(tmp_path), "--task", "lists/sort?n=4", "--seeds", "2", "--num-prompts", "30",
        "--num-checked", "30", "--num-resampled", "50", "--max-drop", "0.2", "--batch-size", "15",
    ]  # fmt: skip
    main(command)
    part = tmp_path / "lists-sort" / "part-0.jsonl"
    records = part.read_bytes()
    first = json.loads((tmp_path / "calibration.json").read_text())
    main(command)
    again = json.loads((tmp_path / "calibration.json").read_text())
    assert part.read_bytes() == records
    assert (again["tasks"], again["rows"]) == (first["tasks"], first["rows"])
    (task,), (row,) = first["tasks"], first["rows"]
    assert len(task["measured"]) == 1 + len(LADDERS["threshold"])
    assert task["measured"][0]["drop"] == 0.0
    assert len(task["chosen"]) == 2
    assert all(one in task["measured"] for one in task["chosen"])
    held = sum(one["drop"] <= 0.2 for one in task["chosen"])
    assert row["held"] == f"{held} of 2"
    keys = [json.loads(line)["key"] for line in records.splitlines()]
    assert len(keys) == len(set(keys))
    assert "Promise: a drop of at most 0.2" in (tmp_path / "calibration.md").read_text()
