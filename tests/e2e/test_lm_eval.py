"""The evaluation harness under `accelerate launch`: two processes, one result."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from eval_runs import write_tasks

ROOT = Path(__file__).parents[2]

pytest.importorskip("lm_eval", reason="needs the extra lm-eval")

ACCELERATE = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2",
              "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no",
              "--main_process_port", "0", "--module", "eval")  # fmt: skip


@pytest.mark.slow
def test_two_processes_answer_every_request_once_and_agree_with_one(tmp_path: Path) -> None:
    """Seven documents: the second process has one less, and the harness pads its requests."""
    tasks = write_tasks(tmp_path / "tasks")
    outputs = []
    for launch in (("-m", "eval"), ACCELERATE):
        out = tmp_path / str(len(outputs))
        subprocess.run(
            [sys.executable, *launch, "lm", "--tasks", "words_generate,words_choose",
             "--include-path", str(tasks), "--gen-length", "64", "--nll", "l2r", "--output",
             str(out), "--batch-size", "2", "--dtype", "float32", "--threads", "1", "--use-cache",
             str(tmp_path / "answers" / str(len(outputs)))],
            cwd=ROOT, check=True, timeout=280,
        )  # fmt: skip
        outputs.append(_read(out))
    single, double = outputs
    assert single["config"]["num_processes"] == 1
    assert double["config"]["num_processes"] == 2
    assert double["results"] == single["results"]
    assert double["keys"] == single["keys"]
    assert len(single["keys"]) == 7
    for task in ("words_generate", "words_choose"):
        assert sorted(double["doc_ids"][task]) == list(range(7))
    single_cost, double_cost = (output["config"]["cost"] for output in (single, double))
    assert single_cost["num_answers"] == double_cost["num_answers"]
    assert single_cost["length"] == double_cost["length"]
    assert len(list((tmp_path / "answers").glob("1-*_rank*.db"))) == 2


def _read(out: Path) -> dict[str, Any]:
    cost = [json.loads(line) for line in (out / "cost.jsonl").read_text().splitlines()]
    results: dict[str, Any] = json.loads((out / "results.json").read_text())
    names = ("task", "doc_id", "idx", "repeat")
    results["keys"] = [[line[name] for name in names] for line in cost]
    results["doc_ids"] = {
        path.stem.removeprefix("samples_"): [
            json.loads(line)["doc_id"] for line in path.read_text().splitlines()
        ]
        for path in out.glob("samples_*.jsonl")
    }
    return results
