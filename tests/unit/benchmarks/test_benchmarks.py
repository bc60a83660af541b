import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.__main__ import main
from benchmarks.contenders import (
    CONTENDERS,
    REFERENCE,
    in_a_process_of_its_own,
    measure,
)
from benchmarks.floor import Columns, Machine, num_flops, weight_bytes
from benchmarks.frame import table_of
from benchmarks.setting import GEOMETRIES, Setting
from benchmarks.watch import Watch
from dllm_decode import ForwardInputs
from eval.metrics.statistics import Estimate

TINY = Setting("tiny", prompt_length=12, gen_length=16, block_length=8, steps_per_block=4)
TINY = replace(TINY, batch_size=2, dtype="float32", num_threads=1)
MACHINE = Machine(bytes_per_s=1e9, flops_per_s=1e9)


@pytest.mark.parametrize("wanted", [28, 8])
@pytest.mark.parametrize("computed", [28, 8])
def test_operations_are_those_that_torch_counts(computed: int, wanted: int) -> None:
    model = TINY.model()
    kv_cache = model.new_kv_cache(2, 28)
    columns = torch.arange(computed).expand(2, -1)
    chosen = torch.arange(min(wanted, computed)).expand(2, -1)
    inputs = ForwardInputs(columns, columns, chosen, kv_cache=kv_cache, slots=slice(0, computed))
    # Fused kernels are not counted on a CPU.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.predict(inputs)
    forward = Columns(rows=2, computed=computed, attended=28, wanted=chosen.shape[1])
    assert num_flops(TINY.sizes, forward) == counter.get_total_flops()


def test_weights_are_all_that_a_forward_reads() -> None:
    sizes, model = TINY.sizes, TINY.model()
    norms = (2 * sizes.num_layers + 1) * sizes.hidden_size
    read = sum(parameter.numel() for parameter in model.parameters())
    read -= model.transformer.embedding.weight.numel() + norms
    assert weight_bytes(sizes, torch.bfloat16) == 2 * read
    sizes = GEOMETRIES["llada-8b"]
    embedding, norms = sizes.vocab_size * sizes.hidden_size, 65 * sizes.hidden_size
    # The size that the published index of LLaDA-8B gives.
    assert weight_bytes(sizes, torch.bfloat16) + 2 * (embedding + norms) == 16_031_162_368


def test_the_floor_is_the_slower_of_reading_and_multiplying() -> None:
    forward = Columns(rows=1, computed=8, attended=8, wanted=8)
    read_s = weight_bytes(TINY.sizes, torch.float32) / 1e9
    multiply_s = num_flops(TINY.sizes, forward) / 1e9
    assert Machine(1e9, 1e15).seconds(TINY, forward) == read_s
    assert Machine(1e15, 1e9).seconds(TINY, forward) == multiply_s


def test_without_a_cache_decode_gives_the_tokens_of_the_reference() -> None:
    # Blocks of eight in three steps, of 3, 3 and 2 tokens; the last block has two tokens.
    setting = replace(TINY, geometry="small", gen_length=18, steps_per_block=3)
    slow, fast = (measure(setting, MACHINE, name) for name in (REFERENCE, CONTENDERS[0]))
    assert fast["tokens"] == slow["tokens"]
    assert len({token for row in fast["tokens"] for token in row}) > 4
    # The reference runs its rows one by one.
    assert (slow["forwards"], fast["forwards"]) == (16, 8)
    assert slow["columns"] == fast["columns"] == 16 * 30


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize("options", CONTENDERS)
def test_every_contender_is_measured(options: str) -> None:
    row = measure(TINY, MACHINE, options)
    assert sum(map(len, row["tokens"])) == 32
    assert 0 < row["ms a call"] * row["forwards"] < 1000 * row["s"]
    assert 0 < row["not in models"] < 1


@pytest.mark.parametrize(("name", "num_full", "num_block"), [(0, 8, 0), (2, 2, 6)])
def test_the_floor_is_the_sum_of_its_forwards(name: int, num_full: int, num_block: int) -> None:
    """Without a cache all forwards are alike; with a cache, the first of a block differs."""
    full = Columns(rows=2, computed=28, attended=28, wanted=8)
    row = measure(TINY, MACHINE, CONTENDERS[name])
    floor_s = num_full * MACHINE.seconds(TINY, full)
    floor_s += num_block * MACHINE.seconds(TINY, full._replace(computed=8))
    model_s = row["ms a call"] * row["forwards"] / 1000
    assert row["times floor"] == pytest.approx(model_s / floor_s)


def test_forwards_that_the_watch_missed_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """No figure is better than a wrong one."""
    monkeypatch.setattr(Watch, "follow", lambda self, model: None)
    row = measure(TINY, MACHINE, CONTENDERS[2])
    assert (row["ms a call"], row["times floor"], row["not in models"]) == (None, None, None)


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
    options += " --parts table step --json"
    chosen = ["NoCache(), NoVerifier()", "DualCache(), SelfVerify(4)"]
    main([*options.split(), str(written), "--contenders", *chosen])
    printed = capsys.readouterr().out
    assert "DualCache(), SelfVerify(4)" in printed
    figures = json.loads(written.read_text())
    names = [row["contender"] for row in figures["table"]]
    assert names == ["plain reference loop", "NoCache()", "DualCache(), SelfVerify(4)"]
    assert figures["table"][1]["tokens"] == "same"
    assert {row["cache"] for row in figures["step"]} == {"NoCache()", "DualCache()"}
    assert figures["command"].startswith("python -m benchmarks --geometry tiny --prompt-length")
    assert set(figures["machine"]) == {"bytes_per_s", "flops_per_s"}


@pytest.mark.slow
def test_a_process_of_its_own_has_memory_of_its_own() -> None:
    held = torch.ones(2**27)
    row = in_a_process_of_its_own(measure, TINY, MACHINE, CONTENDERS[0])
    if row["peak MB"] is None:
        pytest.skip("the system does not tell")
    assert row["peak MB"] < held.nbytes / 1e6
