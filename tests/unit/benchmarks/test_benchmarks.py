import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.contenders import CONTENDERS, REFERENCE, call_in_own_process, measure
from benchmarks.frame import table_of
from benchmarks.setting import Setting
from eval.metrics.statistics import Estimate

TINY = Setting("tiny", prompt_length=12, gen_length=16, block_length=8, steps_per_block=4)
TINY = replace(TINY, batch_size=2, dtype="float32", num_threads=1)


def test_without_a_cache_decode_gives_the_tokens_of_the_reference() -> None:
    # Blocks of eight in three steps, of 3, 3 and 2 tokens; the last block has two tokens.
    setting = replace(TINY, geometry="small", gen_length=18, steps_per_block=3)
    slow, fast = (measure(setting, name) for name in (REFERENCE, CONTENDERS[0]))
    assert fast["tokens"] == slow["tokens"]
    assert len({token for row in fast["tokens"] for token in row}) > 4
    # The reference runs its rows one by one.
    assert (slow["forwards"], fast["forwards"]) == (16, 8)
    assert slow["columns"] == fast["columns"] == 16 * 30


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize("options", CONTENDERS)
def test_every_contender_is_measured(options: str) -> None:
    row = measure(TINY, options)
    assert sum(map(len, row["tokens"])) == 32
    assert row["ms a token"] * 32 == pytest.approx(1000 * row["s"])


def test_a_table_has_the_columns_of_all_rows() -> None:
    rows = [{"": "one", "s": 0.12345}, {"": "two", "s": Estimate(1.0, 0.5, 2.0), "same": True}]
    assert table_of(rows).splitlines() == [
        "|     | s          | same |",
        "| --- | ---------- | ---- |",
        "| one | 0.1235     | -    |",
        "| two | 1 [0.5, 2] | yes  |",
    ]


@pytest.mark.slow
def test_the_command_line_prints_tables_and_writes_figures(tmp_path: Path, capsys) -> None:
    written = tmp_path / "figures.json"
    options = "--geometry tiny --prompt-length 16 --gen-length 32 --device cpu --num-threads 1"
    options += " --parts table --json"
    chosen = ["NoCache(), NoVerifier()", "DualCache(), SelfVerify(4)"]
    main([*options.split(), str(written), "--contenders", *chosen])
    printed = capsys.readouterr().out
    assert "DualCache(), SelfVerify(4)" in printed
    figures = json.loads(written.read_text())
    names = [row["contender"] for row in figures["table"]]
    assert names == ["plain reference loop", "NoCache()", "DualCache(), SelfVerify(4)"]
    assert figures["table"][1]["tokens"] == "same"
    assert figures["command"].startswith("python -m benchmarks --geometry tiny --prompt-length")


@pytest.mark.slow
def test_a_process_of_its_own_has_memory_of_its_own() -> None:
    held = torch.ones(2**27)
    row = call_in_own_process(measure, TINY, CONTENDERS[0])
    if row["peak MB"] is None:
        pytest.skip("the system does not tell")
    assert row["peak MB"] < held.nbytes / 1e6
