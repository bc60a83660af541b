"""Forwards are captured, checked, and replayed with the inputs of the present one."""

import copy
import gc
import re
import sys
import weakref
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from pretended import PROMPTS, Accelerator, Recorder, Replayed, cache_size, forward
from processes import ROOT
from tiny_models import FAMILIES, load_tiny, new_tiny, tiny

from dllm_decode import (
    DualCache,
    ForwardInputs,
    FreeCache,
    KVCache,
    PrefixCache,
    decode,
)
from dllm_decode.models import masked_transformer
from dllm_decode.models.graphs.capture import CudaGraphs, _collector_off
from dllm_decode.models.graphs.runner import GraphRunner
from samplers import ConfidenceThreshold, FixedSchedule

CPU = torch.device("cpu")
OPTIONS: Any = {"gen_length": 16, "block_length": 8, "stop_at_eos": False}


class Runs:
    """A runner over a tiny model, and one cache for all forwards."""

    def __init__(
        self, capture: Any = None, *, num_rows: int = 1, num_slots: int = 40, **options: Any
    ) -> None:
        self.model = tiny("llada")
        self.capture = Recorder() if capture is None else capture
        self.runner = GraphRunner(capture=self.capture, **options)
        self.kv_cache = self.new_kv_cache(num_rows, num_slots)

    def new_kv_cache(self, num_rows: int = 1, num_slots: int = 40) -> KVCache:
        size = cache_size(self.model, num_rows, num_slots)
        return self.runner.pool.new_kv_cache(size, dtype=torch.float64, device=CPU)

    def __call__(self, num_columns: int = 4, **options: Any) -> torch.Tensor:
        inputs = forward(self.kv_cache, num_columns, **options)
        return self.runner(self.model.predict, inputs)

    def expected(self, num_columns: int = 4, **options: Any) -> torch.Tensor:
        kv_cache = KVCache(*(part.clone() for part in self.kv_cache.buffers))
        return self.model.predict(forward(kv_cache, num_columns, **options))


def zeros(inputs: ForwardInputs) -> torch.Tensor:
    return torch.zeros(*inputs.wanted.shape, 3)


def test_graphs_serve_callers_in_and_out_of_inference_mode() -> None:
    runs = Runs()
    for inference in (False, True, False, True, False):
        with torch.inference_mode(inference):
            runs().add_(1.0)
    assert runs.capture.num_replayed == 4


def test_logits_are_not_overwritten_by_the_next_replay() -> None:
    runs = Runs()
    found = [(token, runs(token=token)) for token in range(6)]
    for token, logits in found:
        torch.testing.assert_close(logits, runs.expected(token=token))
    assert runs.capture.num_replayed == 5


def test_sizes_share_one_buffer_of_logits() -> None:
    runs = Runs()
    for columns in (16, 8, 16, 8, 16, 8):
        torch.testing.assert_close(runs(columns), runs.expected(columns))
    assert runs.capture.num_captured == 2
    assert runs.runner._logits.numel() == 16 * 512


def test_the_graph_that_was_not_used_for_longest_goes_first() -> None:
    runs = Runs(max_graphs=2)
    for columns in (8, 8, 16, 16, 8, 24, 24):
        runs(columns)
    assert [one.inputs.tokens.shape[1] for one in runs.runner._graphs.values()] == [8, 24]
    for columns in (16, 16, 16):
        torch.testing.assert_close(runs(columns), runs.expected(columns))
    assert runs.runner.num_graphs == 2


def test_a_graph_of_buffers_that_were_replaced_is_not_replayed() -> None:
    runs = Runs()
    for num_slots in (40, 100, 40):
        del runs.kv_cache
        runs.kv_cache = runs.new_kv_cache(num_slots=num_slots)
        for _ in range(2):
            runs()
        assert runs.kv_cache.keys[..., 0, :].all()
    assert runs.capture.num_captured == 3


def test_a_graph_reads_the_keys_that_its_forward_shows() -> None:
    """A block-causal model shows each block more keys than the one before."""
    runs = Runs(num_slots=100)
    whole = runs.kv_cache
    for part in whole.buffers:
        part.fill_(1.0)
    for num_slots in (40, 100, 40, 100, 40, 100):
        runs.kv_cache = whole.first(num_slots)
        torch.testing.assert_close(runs(token=num_slots), runs.expected(token=num_slots))
    assert runs.capture.num_captured == 2
    assert runs.capture.num_replayed == 4


def test_sizes_seen_once_are_forgotten_too() -> None:
    runs = Runs(max_graphs=1)
    for columns, num_wanted in product((8, 16, 24, 32), (8, 16, 24, 32, 40)):
        wanted = torch.zeros(1, num_wanted, dtype=torch.long)
        runs.runner(zeros, replace(forward(runs.kv_cache, columns), wanted=wanted))
    assert len(runs.runner._seen) == 16


def test_forwards_without_a_cache_and_those_of_many_columns_run_as_they_are() -> None:
    runs, seen = Runs(num_rows=3, max_columns=20), list[ForwardInputs]()

    def run(inputs: ForwardInputs) -> torch.Tensor:
        seen.append(inputs)
        return zeros(inputs)

    for inputs in (forward(runs.kv_cache, 7, num_rows=3), forward(None, 7)):
        for _ in range(3):
            runs.runner(run, inputs)
            # A padded forward would be another one.
            assert seen.pop() is inputs


def test_neither_the_model_nor_the_cache_is_kept_alive() -> None:
    """A cycle of model and runner once kept 16 GB of weights until the next collection."""
    model = new_tiny()
    model._runner = GraphRunner(capture=Recorder())
    kv_cache = model._runner.pool.new_kv_cache(
        cache_size(model, 1, 20), dtype=model.dtype, device=CPU
    )
    gc.collect()
    gc.disable()
    try:
        model.predict(forward(None, 4))
        held = weakref.ref(kv_cache.reserve), weakref.ref(model)
        for _ in range(2):
            model._runner(zeros, forward(kv_cache))
        assert model._runner.num_graphs
        del model, kv_cache
        assert [part() for part in held] == [None, None]
    finally:
        gc.enable()


def test_the_collector_is_off_during_a_capture_and_back_on_after_a_failure() -> None:
    def fail() -> None:
        with _collector_off():
            assert not gc.isenabled()
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        fail()
    assert gc.isenabled()


def test_a_copied_or_moved_model_has_graphs_of_its_own() -> None:
    runner = GraphRunner(capture=Recorder(), max_graphs=3)
    runner.failed = True
    other = copy.deepcopy(runner)
    assert (other.max_graphs, other.num_graphs, other.failed) == (3, 0, False)
    assert other.capture is not runner.capture
    assert isinstance(copy.deepcopy(GraphRunner()).capture, CudaGraphs)
    model = new_tiny()
    before = model._runner
    assert model.to(torch.float64)._runner is not before


# Planted faults: each is found at the first replay, named once, and survived.


def with_moved_inputs(run: Any, inputs: ForwardInputs) -> Any:
    """Replays read tensors that nobody fills."""
    parts = {
        name: part.clone() for name, part in vars(inputs).items() if isinstance(part, torch.Tensor)
    }
    return lambda: run(replace(inputs, **parts))


def with_a_moved_cache(run: Any, inputs: ForwardInputs) -> Any:
    kv_cache = KVCache(*(part.clone() for part in inputs.kv_cache.buffers))
    return lambda: run(replace(inputs, kv_cache=kv_cache))


def with_old_logits(run: Any, inputs: ForwardInputs) -> Any:
    logits = run(inputs).clone()
    return lambda: logits


def unable(run: Any, inputs: ForwardInputs) -> Any:
    raise RuntimeError("operation not permitted when stream is capturing\nmore")


FAULTS = {
    with_moved_inputs: "(a logit of its first replay differs by",
    with_a_moved_cache: "(a stored key or value of its first replay differs by",
    with_old_logits: "(a logit of its first replay differs by",
    unable: "(operation not permitted when stream is capturing)",
}


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_once_and_changes_no_token(fault: Any, family: str) -> None:
    replayed = Replayed(family, capture=fault)
    options: Any = {**OPTIONS, "cache": DualCache()}
    plain = decode(replayed.model, PROMPTS, FixedSchedule(4), **options)
    told = f"{re.escape(FAULTS[fault])}.*run without graphs: the same tokens, slower"
    with pytest.warns(UserWarning, match=told) as caught:
        first = decode(replayed, PROMPTS, FixedSchedule(4), **options)
    assert len(caught) == 1
    # A warning would be an error here.
    second = decode(replayed, PROMPTS, FixedSchedule(4), **options)
    assert torch.equal(plain.tokens, first.tokens)
    assert torch.equal(plain.tokens, second.tokens)
    assert replayed.runner.failed


def test_a_fault_is_an_error_where_graphs_are_required() -> None:
    runs = Runs()
    for _ in range(2):
        runs(8)
    runs.runner.capture = unable
    runs(16)
    with pytest.raises(RuntimeError, match=r"not permitted .*\. Pass graphs='auto'"):
        runs.runner(runs.model.predict, forward(runs.kv_cache, 16), required=True)
    assert runs.runner.failed
    assert not runs.runner.num_graphs


def test_rounding_is_no_fault() -> None:
    class Rounding(Recorder):
        def __call__(self, run: Any, inputs: Any) -> Any:
            replay = super().__call__(run, inputs)
            return lambda: replay().mul_(1 + 1e-10)

    runs = Runs(Rounding())
    for _ in range(3):
        runs()
    assert runs.runner.num_graphs == 1


def test_without_memory_for_a_graph_room_is_made_and_it_is_tried_again() -> None:
    """Out of memory was once taken for a forward that cannot be captured."""

    class Full(Recorder):
        def __call__(self, run: Any, inputs: Any) -> Any:
            if self.num_captured == 1:
                self.num_captured += 1
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return super().__call__(run, inputs)

    runs = Runs(Full())
    for columns in (8, 8, 16, 16, 16, 16):
        torch.testing.assert_close(runs(columns), runs.expected(columns))
    assert [one.inputs.tokens.shape[1] for one in runs.runner._graphs.values()] == [16]
    assert not runs.runner.failed


def test_without_the_folder_of_graphs_models_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 12: all that CUDA graphs need lies behind one seam."""
    package = "dllm_decode.models.graphs"
    paths = [path for path in (ROOT / "dllm_decode").rglob("*.py") if path.parent.name != "graphs"]
    texts = {path.name: path.read_text(encoding="utf-8") for path in paths}
    assert [name for name in texts if f"from {package}" in texts[name]] == ["masked_transformer.py"]
    for name in {package, *(name for name in sys.modules if name.startswith(package))}:
        monkeypatch.setitem(sys.modules, name, None)

    def answer(**options: Any) -> torch.Tensor:
        model = load_tiny("llada", dtype=torch.float64, **options)
        assert model._runner is None
        return decode(model, PROMPTS, FixedSchedule(4), cache=DualCache(), **OPTIONS).tokens.cpu()

    here = answer()
    with Accelerator():
        assert torch.equal(here, answer(device="cuda"))


def test_rows_that_finish_at_different_times_share_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row n has n + 1 open positions, and fills one a step. Few rows are padded to all of them."""
    replayed, num_rows = Replayed("llada"), set[int]()
    predict = replayed.predict

    def noted(inputs: ForwardInputs) -> torch.Tensor:
        num_rows.add(len(inputs.tokens))
        return predict(inputs)

    monkeypatch.setattr(replayed, "predict", noted)
    prompts = [[7 + row, 40, *range(3, 3 + row % 7)] for row in range(8)]
    options: Any = {"gen_length": 8, "block_length": 8, "cache": DualCache()}
    options["templates"] = [[9] * row for row in range(7, -1, -1)]
    plain = decode(replayed.model, prompts, ConfidenceThreshold(1.0), **options)
    for _ in range(2):
        out = decode(replayed, prompts, ConfidenceThreshold(1.0), **options)
        assert torch.equal(plain.tokens, out.tokens)
        assert torch.equal(plain.nfe, out.nfe)
    # The first forward has rows of several lengths, so that it is not captured.
    assert num_rows == set(range(1, 8))
    assert 1 <= replayed.recorder.num_captured <= 4
    assert replayed.recorder.num_replayed >= 12


@pytest.mark.parametrize(
    ("cache", "num_kinds"), [(DualCache(), 2), (PrefixCache(), 3), (FreeCache(), 3)], ids=repr
)
def test_prompts_of_one_bucket_share_graphs(cache: Any, num_kinds: int) -> None:
    """Of all columns, and of those that the cache computes: as many as one or two blocks."""
    replayed = Replayed("llada")
    options: Any = {"gen_length": 16, "block_length": 8, "cache": cache, "stop_at_eos": False}
    for length in range(113, 133, 4):
        prompt = [(7 * column + length) % 500 for column in range(length)]
        out = decode(replayed, [prompt], FixedSchedule(2), **options)
        plain = decode(replayed.model, [prompt], FixedSchedule(2), **options)
        assert torch.equal(plain.tokens, out.tokens)
    assert replayed.recorder.num_captured == num_kinds
    assert replayed.recorder.num_replayed >= 5 * 4 - 2 * num_kinds


@pytest.mark.parametrize("family", ["llada", "llada_moe"])
def test_only_forwards_that_are_cheaper_than_launching_them_are_graphs(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once all experts were counted, and the gate of a mixture was several times too low."""
    model = load_tiny(family)
    config = model.transformer.config
    met = sum(
        part.numel() * (config.moe.num_active if ".experts." in name else 1)
        // (config.moe.num_experts if ".experts." in name else 1)
        for name, part in model.transformer.named_parameters()
    )  # fmt: skip
    everything = sum(part.numel() for part in model.transformer.parameters())
    assert (met < everything) == (family == "llada_moe")
    monkeypatch.setattr(masked_transformer, "_MAX_GRAPH_FLOPS", 100.5 * 2 * met)
    assert masked_transformer._new_runner(model.transformer).max_columns == 100
    monkeypatch.setattr(masked_transformer, "_MAX_GRAPH_FLOPS", 1e30)
    assert masked_transformer._new_runner(model.transformer).max_columns == 4096
