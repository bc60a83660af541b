"""The block schedule as a part of a setting: every command takes it, every record names it."""

import json
from pathlib import Path

from dllm_decode.blocks import MultiBlock, Sequential
from eval.commands import evaluate as main
from eval.runs.folder import Folder

TASK = "word_problems?split=test&limit=3"
USUAL, SEVERAL = repr(Sequential()), repr(MultiBlock(8))


def test_records_and_reports_name_the_schedule_that_decoded_them(tmp_path: Path) -> None:
    """A sweep over two schedules, on the embedded model."""
    sweep, compared = tmp_path / "sweep.toml", tmp_path / "out"
    sweep.write_text(
        f'model = "mini"\ntasks = ["{TASK}"]\nsamplers = ["ConfidenceThreshold(0.9)"]\n'
        'blocks = ["Sequential()", "MultiBlock(8)"]\ngen_length = 64\nblock_length = 8\n'
    )
    assert main(["sweep", str(sweep), str(compared)]) == 0
    records = Folder(compared).records()
    usual, several = (
        [record for record in records if record["blocks"] == name] for name in (USUAL, SEVERAL)
    )
    assert len(usual) == len(several) == 3
    assert sum(record["nfe"] for record in several) < sum(record["nfe"] for record in usual)
    summary = json.loads((compared / "summary.json").read_text())
    assert [row["settings"]["blocks"] for row in summary["rows"]] == [USUAL, SEVERAL]
    methods = ["ConfidenceThreshold", "ConfidenceThreshold + MultiBlock"]
    assert [method["method"] for method in summary["methods"]] == methods
    assert SEVERAL in (compared / "report.html").read_text()
