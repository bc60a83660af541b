"""The parts of a day on a GPU run anywhere, one by one, and resume."""

import json
from pathlib import Path
from typing import Any

import pytest
import reference
import torch

from benchmarks import gpu
from benchmarks.gpu_parts import PARTS
from benchmarks.plain_loop import run_loop
from benchmarks.setting import Setting

TINY = Setting(
    "tiny", prompt_length=12, gen_length=16, block_length=8, steps_per_block=4, dtype="float32",
    num_threads=1,
)  # fmt: skip
WORDS = ["--quick", "--device", "cpu", "--geometry", "tiny"]


QUICK = ("collection", "tree")


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(part, marks=() if part in QUICK else pytest.mark.slow)
        for part in PARTS
        if part != "correctness"
    ],
)
def test_a_part_measures_something(part: str) -> None:
    rows, text = PARTS[part](TINY)
    json.dumps(rows)
    assert rows
    assert part != "step" or "Self CPU" in text


def test_parts_that_are_there_are_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_the_plain_loop_is_that_of_the_tests() -> None:
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(30, 30, 40, generator=generator, dtype=torch.float64)

    def logits_of(canvas: torch.Tensor) -> torch.Tensor:
        columns = torch.arange(canvas.shape[1])
        return table[(canvas.sum() % 30), columns % 30][None].clone()

    def look(canvas: list[int], block: range, step: int) -> Any:
        return logits_of(torch.tensor([canvas]))[0].tolist()

    asked = reference.Asked(look=look, mask_id=39, banned=frozenset({39}))
    row = reference.Row(prompt=[3, 1, 4], gen_length=14, block_length=6)
    expected = reference.decode(asked, row, reference.fixed_rule(4))
    options: Any = {"gen_length": 14, "block_length": 6, "steps_per_block": 4, "mask_id": 39}
    found = run_loop(logits_of, [3, 1, 4], **options)
    assert found.tokens == expected.tokens
    assert found.num_forwards == len(expected.steps)
