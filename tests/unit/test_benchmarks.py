import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.__main__ import main
from benchmarks.contenders import CONTENDERS, parse_pair, run_decode, run_reference
from benchmarks.correctness import check_against_cpu
from benchmarks.floor import Columns, Machine, measure_machine, num_flops, weight_bytes
from benchmarks.growth import measure_growth, points_of
from benchmarks.measure import Watch, in_a_process_of_its_own
from benchmarks.memory import PeakMemory
from benchmarks.neighbour import busy_neighbour
from benchmarks.options import read_options
from benchmarks.setting import GEOMETRIES, Setting
from dllm_decode.models import ForwardInputs
from samplers.facts import Fact

TINY = Setting("tiny", prompt_length=12, gen_length=16, block_length=8, steps_per_block=4)
TINY = replace(TINY, batch_size=2, dtype="float32", num_threads=1)
MACHINE = Machine(bytes_per_s=1e9, flops_per_s=1e9)


# The floor


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


def test_the_large_geometry_is_that_of_llada() -> None:
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


def test_rates_are_those_of_a_machine() -> None:
    machine = measure_machine(TINY)
    assert 1e8 < machine.bytes_per_s < 1e13
    assert 1e9 < machine.flops_per_s < 1e16


# Memory


def test_a_peak_is_that_of_the_work_and_not_of_what_was_before() -> None:
    before = torch.ones(2**25)
    del before
    peak = PeakMemory(torch.device("cpu"))
    if peak.extra_bytes() is None:
        pytest.skip("the system does not tell")
    held = torch.ones(2**23)
    assert 0.9 * held.nbytes < peak.extra_bytes() < 1.5 * held.nbytes
    del held
    assert peak.extra_bytes() > 0.9 * 2**25
    assert PeakMemory(torch.device("cpu")).extra_bytes() < 2**24


# Contenders


def test_without_a_cache_decode_gives_the_tokens_of_the_reference() -> None:
    setting = replace(TINY, geometry="small")
    slow = run_reference(setting, MACHINE)
    fast = run_decode(setting, MACHINE, "NoCache(), NoVerifier()")
    assert fast.tokens == slow.tokens
    assert len({token for row in fast.tokens for token in row}) > 4
    # The reference runs its rows one by one.
    assert (slow.forwards, fast.forwards) == (16, 8)
    assert slow.query_positions == fast.query_positions == 16 * 28
    assert slow.num_tokens == fast.num_tokens == 32


@pytest.mark.parametrize("options", CONTENDERS)
def test_every_contender_is_measured(options: str) -> None:
    figure = run_decode(TINY, MACHINE, options)
    cache, verifier = parse_pair(options, TINY.target)
    assert figure.num_tokens == 32
    assert 0 < figure.model_s < figure.wall_s
    assert 0 < figure.outside_share < 1
    assert (figure.target_s > 0) == (Fact.SAMPLER_DECIDES not in verifier.gives)
    assert (figure.memory_bytes > 0) == cache.needs_kv_cache
    assert figure.logits_bytes == 2 * 8 * 1000 * 4
    assert figure.weight_bytes == sum(part.nbytes for part in TINY.model().parameters())


def test_the_floor_of_a_decode_is_the_sum_of_its_forwards() -> None:
    """Without a cache all are alike; with one, the first of a block differs from the others."""
    full = Columns(rows=2, computed=28, attended=28, wanted=8)
    figure = run_decode(TINY, MACHINE, "NoCache(), NoVerifier()")
    assert figure.floor_s == pytest.approx(8 * MACHINE.seconds(TINY, full))
    figure = run_decode(TINY, MACHINE, "DualCache(), NoVerifier()")
    block = MACHINE.seconds(TINY, full._replace(computed=8))
    assert figure.floor_s == pytest.approx(2 * MACHINE.seconds(TINY, full) + 6 * block)


def test_forwards_that_the_watch_missed_are_told(monkeypatch) -> None:
    """No figure is better than a wrong one."""
    monkeypatch.setattr(Watch, "follow", lambda self, model: None)
    figure = run_decode(TINY, MACHINE, "DualCache(), NoVerifier()")
    assert (figure.model_s, figure.floor_s, figure.outside_share) == (None, None, None)


# Growth and correctness


def test_growth_is_measured_at_every_point() -> None:
    setting = replace(TINY, batch_size=1)
    points = measure_growth(points_of(setting, [12, 24], [1, 3]), MACHINE)
    places = [(point.prompt_length, point.batch_size) for point in points]
    assert places == [(12, 1), (24, 1), (12, 3)]
    for point in points:
        columns = point.batch_size * (point.prompt_length + 8)
        assert point.full.floor_s > point.block.floor_s * columns / (point.batch_size * 8) / 3
        assert point.first_s > 0
        assert point.s_per_token > 0


@pytest.mark.slow
def test_the_cpu_agrees_with_itself_and_not_with_other_weights(monkeypatch) -> None:
    monkeypatch.setitem(GEOMETRIES, "small", GEOMETRIES["tiny"])
    found = check_against_cpu(TINY)
    assert set(found.same_tokens.values()) == {found.num_tokens} == {256}
    assert found.float32_error == 0.0
    assert 0.8 < found.argmax_agreement == found.cpu_argmax_agreement < 1.0
    made, count = Setting.model, []

    def other(setting: Setting):
        model = made(setting)
        count.append(model)
        if len(count) == 2:
            model.transformer.norm.weight[::2] *= -1
        return model

    monkeypatch.setattr(Setting, "model", other)
    found = check_against_cpu(TINY)
    assert max(found.same_tokens.values()) < 128
    assert found.float32_error > 1
    assert found.argmax_agreement < 0.5


# The command line


def test_quick_and_the_device_change_defaults_and_nothing_that_is_given() -> None:
    plain = read_options("", ["--device", "cpu"])
    assert (plain.setting.geometry, plain.setting.gen_length) == ("8x512", 128)
    quick = read_options("", ["--device", "cpu", "--quick", "--gen-length", "64"])
    assert (quick.setting.prompt_length, quick.setting.gen_length) == (128, 64)
    assert len(quick.prompt_lengths) < len(plain.prompt_lengths)
    assert read_options("", ["--device", "cuda"]).setting.geometry == "llada-8b"
    given = read_options("", ["--device", "cuda", "--geometry", "small", "--no-reference"])
    assert (given.setting.geometry, given.with_reference) == ("small", False)


@pytest.mark.slow
def test_the_command_line_prints_tables_and_writes_figures(tmp_path: Path, capsys) -> None:
    written = tmp_path / "figures.json"
    options = "--geometry tiny --quick --device cpu --num-threads 1 --prompt-lengths 16 --json"
    chosen = ["NoCache(), NoVerifier()", "DualCache(), SelfVerify(4)"]
    main([*options.split(), str(written), "--contenders", *chosen])
    printed = capsys.readouterr().out
    assert "DualCache(), SelfVerify(4)" in printed
    assert "One more step" in printed
    figures = json.loads(written.read_text())
    busy = "DualCache(), with one busy neighbour"
    assert set(figures["table"]) == {"plain reference loop", *chosen, busy}
    assert "with one busy neighbour" in printed
    assert (
        figures["table"][chosen[0]]["tokens"] == figures["table"]["plain reference loop"]["tokens"]
    )
    assert [point["batch_size"] for point in figures["growth"]] == [1, 4]
    assert figures["command"].startswith("python -m benchmarks --geometry tiny --quick")
    assert set(figures["machine"]) == {"bytes_per_s", "flops_per_s"}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")
def test_a_busy_neighbour_computes_on_a_core_that_is_ours_and_then_ends() -> None:
    with busy_neighbour() as process:
        assert os.sched_getaffinity(process.pid) == {min(os.sched_getaffinity(0))}

        def ticks() -> int:
            """User time in hundredths of a second."""
            return int(Path(f"/proc/{process.pid}/stat").read_text().split()[13])

        before, started = ticks(), time.monotonic()
        while ticks() <= before + 2 and time.monotonic() < started + 30:
            time.sleep(0.05)
        assert ticks() > before + 2
    assert process.poll() is not None


@pytest.mark.slow
def test_a_process_of_its_own_has_memory_of_its_own() -> None:
    held = torch.ones(2**26)
    figure = in_a_process_of_its_own(run_decode, TINY, MACHINE, "NoCache(), NoVerifier()")
    assert figure.extra_peak_bytes is None or figure.extra_peak_bytes < held.nbytes / 4
