import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.__main__ import main, read
from benchmarks.check import check_against_cpu
from benchmarks.contenders import (
    CONTENDERS,
    REFERENCE,
    in_a_process_of_its_own,
    measure,
    parse_pair,
)
from benchmarks.floor import Columns, Machine, num_flops, weight_bytes
from benchmarks.frame import table_of
from benchmarks.growth import draw_growth, measure_growth, points_of
from benchmarks.setting import FAMILIES, GEOMETRIES, Setting
from benchmarks.watch import Watch, watch_memory
from dllm_decode.models import ForwardInputs
from eval.metrics.statistics import Estimate
from samplers.facts import Fact

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
    # What the published index of LLaDA-8B says.
    assert weight_bytes(sizes, torch.bfloat16) + 2 * (embedding + norms) == 16_031_162_368


def test_the_floor_is_the_slower_of_reading_and_multiplying() -> None:
    forward = Columns(rows=1, computed=8, attended=8, wanted=8)
    read_s = weight_bytes(TINY.sizes, torch.float32) / 1e9
    multiply_s = num_flops(TINY.sizes, forward) / 1e9
    assert Machine(1e9, 1e15).seconds(TINY, forward) == read_s
    assert Machine(1e15, 1e9).seconds(TINY, forward) == multiply_s


def test_a_peak_is_that_of_the_work_and_not_of_what_was_before() -> None:
    before = torch.ones(2**25)
    del before
    extra_bytes = watch_memory(torch.device("cpu"))
    if extra_bytes() is None:
        pytest.skip("the system does not tell")
    held = torch.ones(2**23)
    assert 0.9 * held.nbytes < extra_bytes() < 1.5 * held.nbytes
    del held
    assert extra_bytes() > 0.9 * 2**25
    assert watch_memory(torch.device("cpu"))() < 2**24


def test_without_a_cache_decode_gives_the_tokens_of_the_reference() -> None:
    # Blocks of eight in three steps: of three tokens, three and two; the last block has two.
    setting = replace(TINY, geometry="small", gen_length=18, steps_per_block=3)
    slow, fast = (measure(setting, MACHINE, name) for name in (REFERENCE, CONTENDERS[0]))
    assert fast.tokens == slow.tokens
    assert len({token for row in fast.tokens for token in row}) > 4
    # The reference runs its rows one by one.
    assert (slow.row["forwards"], fast.row["forwards"]) == (16, 8)
    assert slow.row["columns"] == fast.row["columns"] == 16 * 30


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize("options", CONTENDERS)
def test_every_contender_is_measured(options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    watches = []
    made = Watch.__init__
    monkeypatch.setattr(
        Watch, "__init__", lambda self, device: (made(self, device), watches.append(self))[0]
    )
    tokens, row = measure(TINY, MACHINE, options)
    (watch,) = watches
    cache, verifier = parse_pair(options, TINY.target)
    assert sum(map(len, tokens)) == 32
    assert 0 < row["ms a call"] * row["forwards"] < 1000 * row["s"]
    assert 0 < row["not in models"] < 1
    assert (watch.target_s() > 0) == (Fact.SAMPLER_DECIDES not in verifier.gives)
    assert (watch.cache_bytes > 0) == cache.needs_kv_cache


@pytest.mark.parametrize(("name", "num_full", "num_block"), [(0, 8, 0), (2, 2, 6)])
def test_the_floor_is_the_sum_of_its_forwards(name: int, num_full: int, num_block: int) -> None:
    """Without a cache all are alike; with one, the first of a block differs from the others."""
    full = Columns(rows=2, computed=28, attended=28, wanted=8)
    row = measure(TINY, MACHINE, CONTENDERS[name]).row
    floor_s = num_full * MACHINE.seconds(TINY, full)
    floor_s += num_block * MACHINE.seconds(TINY, full._replace(computed=8))
    model_s = row["ms a call"] * row["forwards"] / 1000
    assert row["times floor"] == pytest.approx(model_s / floor_s)


def test_forwards_that_the_watch_missed_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """No figure is better than a wrong one."""
    monkeypatch.setattr(Watch, "follow", lambda self, model: None)
    row = measure(TINY, MACHINE, CONTENDERS[2]).row
    assert (row["ms a call"], row["times floor"], row["not in models"]) == (None, None, None)


def test_growth_is_measured_and_drawn_at_every_point(tmp_path: Path) -> None:
    grown = {"prompt_length": [12, 24], "gen_length": [24], "batch_size": [1, 3]}
    points = points_of(TINY, {**grown, "vocab_size": [1000, 2000]})
    rows = measure_growth(points, MACHINE)
    sizes = [(row["prompt"], row["answer"], row["batch"], row["vocabulary"]) for row in rows]
    base, others = (12, 8, 1, 1000), [(24, 8, 1, 1000), (12, 24, 1, 1000)]
    assert sizes == [base, *others, (12, 8, 3, 1000), (12, 8, 1, 2000)]
    for row in rows:
        assert row["first step, ms"] > 0
        assert row["tokens a s"] > 0
    assert rows[3]["times batch 1"] == rows[3]["tokens a s"] / rows[0]["tokens a s"]
    draw_growth(rows, tmp_path / "growth.svg", "tiny")
    drawn = (tmp_path / "growth.svg").read_text()
    assert all(f">{label}<" in drawn for label in ("tokens of the answer", "rows", "24", "2,000"))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_of_models_decodes(family: str) -> None:
    setting = replace(TINY, family=family)
    model = setting.model()
    assert (model.logit_shift, model.causal_block_length) == {
        "shifted": (1, 0), "block-causal": (0, TINY.block_length)
    }.get(family, (0, 0))  # fmt: skip
    assert model.transformer.config.has_experts(0) == (family == "experts")
    assert measure(setting, MACHINE, CONTENDERS[2]).row["forwards"] > 0


@pytest.mark.slow
def test_the_cpu_agrees_with_itself_and_not_with_other_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(GEOMETRIES, "small", GEOMETRIES["tiny"])
    *tokens, device, cpu, error = check_against_cpu(TINY)
    assert {(row["same"], row["of"]) for row in tokens} == {(256, 256)}
    assert error["error"] == 0.0
    assert 0.8 < device["same"] / device["of"] == cpu["same"] / cpu["of"] < 1.0
    made, count = Setting.model, []

    def other(setting: Setting):
        model = made(setting)
        count.append(model)
        if len(count) == 2:
            model.transformer.norm.weight[::2] *= -1
        return model

    monkeypatch.setattr(Setting, "model", other)
    *tokens, device, _, error = check_against_cpu(TINY)
    assert max(row["same"] for row in tokens) < 128
    assert error["error"] > 1
    assert device["same"] / device["of"] < 0.5


def test_a_table_has_the_columns_of_all_rows() -> None:
    rows = [{"": "one", "s": 0.12345}, {"": "two", "s": Estimate(1.0, 0.5, 2.0), "same": True}]
    assert table_of(rows).splitlines() == [
        "|     | s          | same |",
        "| --- | ---------- | ---- |",
        "| one | 0.1235     | -    |",
        "| two | 1 [0.5, 2] | yes  |",
    ]


def test_quick_and_the_device_change_defaults_and_nothing_that_is_given() -> None:
    quick = read(["--device", "cpu", "--quick", "--gen-length", "64"])
    assert (quick.geometry, quick.prompt_length, quick.gen_length) == ("8x512", 128, 64)
    assert len(quick.prompt_lengths) < len(read(["--device", "cpu"]).prompt_lengths)
    assert read(["--device", "cuda"]).geometry == "llada-8b"
    assert read(["--device", "cuda", "--geometry", "small"]).geometry == "small"


@pytest.mark.slow
def test_the_command_line_prints_tables_and_writes_figures(tmp_path: Path, capsys) -> None:
    written = tmp_path / "figures.json"
    options = "--geometry tiny --quick --device cpu --num-threads 1 --prompt-lengths 16 --json"
    chosen = ["NoCache(), NoVerifier()", "DualCache(), SelfVerify(4)"]
    main([*options.split(), str(written), "--contenders", *chosen])
    printed = capsys.readouterr().out
    assert "DualCache(), SelfVerify(4)" in printed
    assert "check:" not in printed
    figures = json.loads(written.read_text())
    names = [row["contender"] for row in figures["table"]]
    assert names == ["plain reference loop", "NoCache()", "DualCache(), SelfVerify(4)"]
    assert figures["table"][1]["tokens"] == "same"
    assert {row["batch"] for row in figures["growth"]} == {1, 4}
    assert figures["command"].startswith("python -m benchmarks --geometry tiny --quick")
    assert set(figures["machine"]) == {"bytes_per_s", "flops_per_s"}


@pytest.mark.slow
def test_a_process_of_its_own_has_memory_of_its_own() -> None:
    held = torch.ones(2**26)
    found = in_a_process_of_its_own(measure, TINY, MACHINE, CONTENDERS[0])
    assert found.row["peak MB"] is None or found.row["peak MB"] < held.nbytes / 4e6
