"""The example that learns from rollouts runs, and goes on where it was stopped."""

import json
from pathlib import Path

import torch

from examples.grpo_mini import figures, main


def lines_of(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_the_example_learns_and_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = [str(folder), "--num-examples", "8", "--price", "0.1"]
    main([*arguments, "--minutes", "0.001"])
    first = lines_of(folder)
    assert [line["round"] for line in first] == [0, 1]
    before = torch.load(folder / "checkpoint.pt", weights_only=False)["model"]
    main([*arguments, "--minutes", str(first[-1]["seconds"] / 60 + 0.01)])
    resumed = lines_of(folder)
    assert resumed[:2] == first
    assert resumed[-1]["round"] >= 2
    assert resumed[-1]["reward"] < 1.0
    after = torch.load(folder / "checkpoint.pt", weights_only=False)["model"]
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_the_rise_is_that_of_pairs() -> None:
    summary = figures(
        [(0, 3), (1, 3), (0, 3), (1, 1)], [(1, 2), (1, 2), (1, 2), (0, 2)], [1.0, 0.0]
    )
    assert summary["accuracy"] == 0.75
    assert summary["rise"] == 0.25
    assert summary["low"] < 0.25 < summary["high"]
    assert (summary["forwards"], summary["reward"]) == (2.0, 0.5)
