"""The example for Ray Data: its class without Ray, and the program where Ray is installed."""

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import QUESTIONS

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "ray_data.py"
OPTIONS: Any = {"gen_length": 16, "temperature": 2.0}
LINES = [{"text": text, "seed": seed, "id": seed} for seed, text in enumerate(QUESTIONS * 4)]


def answers(generate: Any, lines: Sequence[Any], batch_length: int) -> dict[int, str]:
    """Returns the answers by id, as Ray Data asks for them: in batches of columns."""
    batches = [lines[n : n + batch_length] for n in range(0, len(lines), batch_length)]
    columns = [{key: np.array([line[key] for line in one]) for key in one[0]} for one in batches]
    answered = [generate(batch) for batch in columns]
    assert [list(batch) for batch in answered] == [["text", "seed", "id", "answer"]] * len(batches)
    pairs = [zip(batch["id"].tolist(), batch["answer"], strict=True) for batch in answered]
    return {number: text for pair in pairs for number, text in pair}


def test_answers_depend_on_no_batch_and_no_actor() -> None:
    kind = runpy.run_path(str(EXAMPLE))["Generate"]
    first, second = (kind("mini", "cpu", num_rows=num, **OPTIONS) for num in (8, 3))
    whole = answers(first, LINES, len(LINES))
    assert len(whole) == len(LINES)
    assert len(set(whole.values())) > len(QUESTIONS)
    assert answers(second, LINES[::-1], 7) == answers(second, LINES, 1) == whole


@pytest.mark.slow
def test_the_program_answers_each_line_once_also_when_it_is_run_again(tmp_path: Path) -> None:
    pytest.importorskip("ray.data")
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, LINES)))
    folders = [str(tmp_path / name) for name in ("prompts.jsonl", "out", "checkpoint")]
    words = [sys.executable, EXAMPLE, *folders, "--gen-length", "16", "--temperature", "2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    for _ in range(2):
        ran = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300.0)
        assert ran.returncode == 0, ran.stderr
        written = [line for file in (tmp_path / "out").iterdir() for line in file.open()]
        rows = {row["id"]: row["answer"] for row in map(json.loads, written)}
        assert len(rows) == len(written) == len(LINES)
    kind = runpy.run_path(str(EXAMPLE))["Generate"]
    assert rows == answers(kind("mini", "cpu", **OPTIONS), LINES, 5)
