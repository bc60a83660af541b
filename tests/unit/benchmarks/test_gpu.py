"""The parts of a day on a GPU run anywhere, one by one, and resume."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu
from benchmarks.gpu_parts import PARTS
from benchmarks.setting import Setting

TINY = Setting(
    "tiny", prompt_length=12, gen_length=16, block_length=8, steps_per_block=4, dtype="float32",
    num_threads=1,
)  # fmt: skip
WORDS = ["--quick", "--device", "cpu", "--geometry", "tiny"]
SLOW = set(PARTS) - {"collection", "correctness"}


@pytest.mark.parametrize(
    "part", ["collection", *(pytest.param(part, marks=pytest.mark.slow) for part in sorted(SLOW))]
)
def test_a_part_measures_something(part: str) -> None:
    rows, text = PARTS[part](TINY)
    json.dumps(rows)
    assert rows
    assert part != "step" or "Self CPU" in text


def test_finished_parts_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def run(command: list[str], **_: Any) -> Any:
        part = command[-1]
        ran.append(part)
        if part == "tree" and ran.count("tree") == 1:
            return type("Done", (), {"returncode": 1})
        gpu.main([*command[4:]])
        return type("Done", (), {"returncode": 0})

    monkeypatch.setattr(gpu.subprocess, "run", run)
    words = [*WORDS, "--folder", str(tmp_path), "--parts", "free-cache", "tree"]
    with pytest.raises(SystemExit, match="These parts must be run again: tree"):
        gpu.main(words)
    gpu.main(words)
    assert ran == ["free-cache", "tree", "tree"]
    record = json.loads((tmp_path / "tree.json").read_text())
    assert [row["time"] for row in record["rows"]] == [1, 2, 3, 4, 5, 6]
    assert record["setting"]["geometry"] == "tiny"
    gpu.main([*words, "--again"])
    assert ran[3:] == ["free-cache", "tree"]
