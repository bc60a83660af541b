"""The parts of the measurements on a GPU run anywhere, one by one, and resume."""

import json
from pathlib import Path

import pytest

from benchmarks import gpu, graphs
from benchmarks.setting import GEOMETRIES, Setting

WORDS = ["--quick", "--device", "cpu"]
TINY = Setting(
    "tiny", prompt_length=12, gen_length=16, block_length=8, steps_per_block=4, dtype="float32",
    num_threads=1,
)  # fmt: skip


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles and records next to nothing, which would take minutes."""
    monkeypatch.setattr(graphs, "LIMIT_S", 1.0)
    monkeypatch.setitem(GEOMETRIES, "small", GEOMETRIES["tiny"])


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("part", [part for part in gpu.PARTS if part not in ("tests", "compiled")])
def test_a_part_measures_something(part: str) -> None:
    rows = list(gpu.PARTS[part](TINY))
    json.dumps(rows)
    assert rows
    for row in rows:
        assert any(isinstance(value, (int, float)) and value > 0 for value in row.values()), row


@pytest.mark.slow
@pytest.mark.untyped
@pytest.mark.parametrize("part", gpu.PARTS)
def test_every_part_runs_as_its_users_run_it(part: str, tmp_path: Path) -> None:
    gpu.main([*WORDS, "--folder", str(tmp_path), "--parts", part])
    record = json.loads((tmp_path / f"{part}.json").read_text())
    assert record["setting"]["geometry"] == "tiny"
    if part == "tests":
        assert {row["exit status"] for row in record["rows"]} == {0}


def test_finished_parts_are_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def run(part: str, setting: Setting, path: Path, limit_s: float) -> None:
        ran.append(part)
        if part != "weights" or ran.count("weights") > 1:
            gpu.measure_part(part, setting, path)

    monkeypatch.setattr(gpu, "run", run)
    monkeypatch.setattr(gpu, "PARTS", dict.fromkeys(gpu.PARTS, _one_line))
    words = [*WORDS, "--folder", str(tmp_path), "--parts", "weights", "one-row"]
    with pytest.raises(SystemExit, match=r"These parts must be run again: weights\."):
        gpu.main(words)
    gpu.main(words)
    assert ran == ["weights", "one-row", "weights"]
    assert "weights: Says its batch" in capsys.readouterr().out


def _one_line(setting: Setting) -> gpu.Rows:
    """Says its batch."""
    return [{"rows": setting.batch_size}]
