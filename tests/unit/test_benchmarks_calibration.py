"""The check of calibrations: against known truth, and resumed without decoding anything anew."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.calibration import Study, main, resample
from eval.calibrate.procedure import Guarantee

LADDER = ("ConfidenceThreshold(0.9)", "ConfidenceThreshold(0.5)")


def study(num_prompts: int, num_resampled: int, guarantee: Guarantee) -> Study:
    return Study(
        ("lists/sort?n=4",), 1, num_prompts, 1000, num_resampled, guarantee, LADDER, batch_size=50
    )


def scores(*num_lost: int) -> np.ndarray:
    """The reference is always right; each setting loses on its first so many of 1,000 prompts."""
    found = np.ones((1 + len(num_lost), 1000))
    for own, lost in zip(found[1:], num_lost, strict=True):
        own[:lost] = 0.0
    return found


def test_drawn_calibrations_choose_the_fastest_setting_that_keeps_the_promise() -> None:
    found = resample(study(500, 300, Guarantee()), scores(0, 500), [1.0, 3.0, 9.0])
    assert (found.num_runs, found.num_broken, found.speedup) == (300, 0, 3.0)
    # Behind a setting that loses too much no other is reached.
    found = resample(study(500, 300, Guarantee()), scores(500, 0), [1.0, 3.0, 9.0])
    assert (found.num_broken, found.speedup) == (0, 1.0)


@pytest.mark.parametrize("test", ["both", "binomial", "betting"])
def test_few_drawn_calibrations_break_the_promise_just_beyond_it(test: str) -> None:
    guarantee = Guarantee(0.02, 0.9, test)  # type: ignore[arg-type]  # one of the three
    found = resample(study(500, 2000, guarantee), scores(21, 999), [1.0, 3.0, 9.0])
    assert 0 < found.num_broken <= 0.1 * 2000


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
    assert (again["tasks"], again["summary"]) == (first["tasks"], first["summary"])
    (task,) = first["tasks"]
    assert len(task["measured"]) == 1 + len(first["study"]["ladder"])
    assert task["measured"][0]["drop"] == 0.0
    assert first["summary"]["num_calibrations"] == len(task["calibrations"]) == 2
    for one in task["calibrations"]:
        own = next(m for m in task["measured"] if m["sampler"] == one["sampler"])
        assert one["held"] == (own["drop"] <= 0.2)
    keys = [json.loads(line)["key"] for line in records.splitlines()]
    assert len(keys) == len(set(keys))
    assert "Promise: a drop of at most 0.2" in (tmp_path / "calibration.md").read_text()
