"""The example that learns from rollouts runs, tests, and writes a model that loads."""

import json
from pathlib import Path

import torch

from dllm_decode import load_model
from examples.grpo_mini import figures, main


def test_the_example_learns_and_writes_a_model(tmp_path: Path) -> None:
    main([str(tmp_path), "--num-examples", "8", "--price", "0.1", "--minutes", "0.001"])
    first, last = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    assert (first["round"], first["rise"], last["round"]) == (0, 0.0, 1)
    assert last["reward"] < 1.0
    (before, _), (after, _) = load_model("mini"), load_model(tmp_path / "model")
    assert not torch.equal(before.transformer.embedding.weight, after.transformer.embedding.weight)


def test_the_rise_is_that_of_pairs() -> None:
    summary = figures(
        [(0, 3), (1, 3), (0, 3), (1, 1)], [(1, 2), (1, 2), (1, 2), (0, 2)], [1.0, 0.0]
    )
    assert summary["accuracy"] == 0.75
    assert summary["rise"] == 0.25
    assert summary["low"] < 0.25 < summary["high"]
    assert (summary["forwards"], summary["reward"]) == (2.0, 0.5)
