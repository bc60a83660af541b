"""Forwards are captured, checked, and replayed with the inputs of the present one."""

import copy
import gc
import sys
import warnings
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from pretended import PROMPTS, Accelerator, Recorder, Replayed, cache_size, forward
from processes import ROOT
from tiny_models import FAMILIES, load_tiny, tiny

from dllm_decode import (
    DelayedCache,
    DualCache,
    ForwardInputs,
    FreeCache,
    KVCache,
    PrefixCache,
    decode,
    load_model,
)
from dllm_decode.models import masked_transformer
from dllm_decode.models.graphs.capture import CudaGraphs, _collector_off
from dllm_decode.models.graphs.runner import GraphRunner
from samplers import ConfidenceThreshold, FixedSchedule

CPU = torch.device("cpu")
OPTIONS: Any = {"gen_length": 16, "block_length": 8, "stop_at_eos": False}


class Runs:
    """A runner over a tiny model, and one cache for all forwards."""

    def __init__(self, capture: Any = None, *, num_rows: int = 1, **options: Any) -> None:
        self.model = tiny("llada")
        self.capture = Recorder() if capture is None else capture
        self.runner = GraphRunner(capture=self.capture, **options)
        self.kv_cache = self.new_kv_cache(num_rows)

    def new_kv_cache(self, num_rows: int = 1, num_slots: int = 40) -> KVCache:
        size = cache_size(self.model, num_rows, num_slots)
        return self.runner.pool.new_kv_cache(size, dtype=torch.float64, device=CPU)

    def __call__(self, num_columns: int = 4, **options: Any) -> torch.Tensor:
        inputs = forward(self.kv_cache, num_columns, **options)
        return self.runner(self.model.predict, inputs)

    def expected(self, num_columns: int = 4, *, num_rows: int = 1, **options: Any) -> torch.Tensor:
        kv_cache = self.model.new_kv_cache(self.kv_cache.keys.shape[1], 40)
        for part, held in zip(kv_cache.buffers, self.kv_cache.buffers, strict=True):
            part.copy_(held)
        return self.model.predict(forward(kv_cache, num_columns, num_rows=num_rows, **options))


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


def test_sizes_seen_once_are_forgotten_too() -> None:
    runs = Runs(max_graphs=1)
    for columns in range(1, 9):
        for other in range(1, 5):
            inputs = forward(runs.kv_cache, columns)
            wanted = torch.zeros(1, 8 * other, dtype=torch.long)
            runs.runner(runs.model.predict, replace(inputs, wanted=wanted))
    assert len(runs.runner._seen) <= 16


def test_forwards_without_a_cache_and_those_of_many_columns_run_as_they_are() -> None:
    calls = []

    def run(inputs: Any) -> torch.Tensor:
        calls.append(inputs)
        return torch.zeros(*inputs.wanted.shape, 3)

    runs = Runs(num_rows=3, max_columns=20)
    many, alone = forward(runs.kv_cache, 7, num_rows=3), forward(None, 7)
    for inputs in (many, many, alone, alone):
        runs.runner(run, inputs)
    assert calls[0] is calls[1] is many
    assert calls[2] is calls[3] is alone
    assert not runs.capture.num_captured


def test_neither_the_model_nor_the_cache_is_kept_alive() -> None:
    """A cycle of model and runner once kept 16 GB of weights until the next collection."""
    model = load_model("mini")[0]
    model._runner = GraphRunner(capture=Recorder())
    kv_cache = model._runner.pool.new_kv_cache(
        cache_size(model, 1, 20), dtype=model.dtype, device=CPU
    )
    gc.collect()
    gc.disable()
    try:
        model.predict(forward(None, 4))
        held = weakref.ref(kv_cache.reserve), weakref.ref(model)
        model._runner(lambda inputs: torch.zeros(*inputs.wanted.shape, 3), forward(kv_cache))
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
    model = load_model("mini")[0]
    before = model._runner
    assert model.to(torch.float64)._runner is not before


# Planted faults: each is found at the first replay, named once, and survived.


class OtherInputs(Recorder):
    """Replays read inputs that were moved: nobody fills them."""

    def __call__(self, run: Any, inputs: Any) -> Any:
        parts = {
            name: part.clone() if isinstance(part, torch.Tensor) else part
            for name, part in vars(inputs).items()
        }
        return super().__call__(run, replace(inputs, **parts))


class OtherCache(Recorder):
    """Replays write to key-value buffers that were moved."""

    def __call__(self, run: Any, inputs: Any) -> Any:
        held = inputs.kv_cache
        moved = KVCache(held.keys.clone(), held.values.clone())
        return super().__call__(run, replace(inputs, kv_cache=moved))


class OtherLogits(Recorder):
    """Replays leave their logits where they were last."""

    def __call__(self, run: Any, inputs: Any) -> Any:
        logits = run(inputs).clone()
        return lambda: logits


class Unable(Recorder):
    """No forward can be captured."""

    def __call__(self, run: Any, inputs: Any) -> Any:
        self.num_captured += 1
        raise RuntimeError("operation not permitted when stream is capturing\nmore")


FAULTS = {
    OtherInputs: "a logit of its first replay differs by",
    OtherCache: "a stored key or value of its first replay differs by",
    OtherLogits: "a logit of its first replay differs by",
    Unable: r"operation not permitted when stream is capturing\)",
}


@pytest.mark.exhaustive(6)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_once_and_changes_no_token(fault: Any, family: str) -> None:
    for cache in (DualCache(), FreeCache()):
        replayed = Replayed(family, capture=fault())
        plain = decode(replayed.model, PROMPTS, FixedSchedule(4), cache=cache, **OPTIONS)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                out = decode(replayed, PROMPTS, FixedSchedule(4), cache=cache, **OPTIONS)
                assert torch.equal(plain.tokens, out.tokens)
        (warning,) = caught
        assert FAULTS[fault].strip("\\)") in str(warning.message)
        assert "run without graphs: the same tokens, slower" in str(warning.message)
        assert replayed.runner.failed
        assert not replayed.runner.num_graphs


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_an_error_where_graphs_are_required(fault: Any) -> None:
    runs = Runs(fault())
    runs()
    with pytest.raises(RuntimeError, match=FAULTS[fault]):
        runs.runner(runs.model.predict, forward(runs.kv_cache), required=True)


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
        model, _ = load_model("mini", dtype=torch.float64, **options)
        assert model._runner is None
        out = decode(model, [[5, 6, 7], [8]], FixedSchedule(2), cache=DualCache(), gen_length=8)
        return out.tokens.cpu()

    here = answer()
    with Accelerator():
        assert torch.equal(here, answer(device="cuda"))


@pytest.mark.parametrize("cache", [DualCache(), FreeCache(), DelayedCache(2, 1)], ids=repr)
@pytest.mark.parametrize("family", ["dream", "sdar"])
def test_a_canvas_of_several_sizes_gives_the_same_answers(family: str, cache: Any) -> None:
    """Of a block-causal model, each block has more keys than the one before, up to 72."""
    replayed = Replayed(family)
    prompts = [[(7 * column) % 500 for column in range(length)] for length in (48, 41)]
    options: Any = {"gen_length": 24, "block_length": 8, "cache": cache}
    plain = decode(replayed.model, prompts, FixedSchedule(4), **options)
    for _ in range(2):
        out = decode(replayed, prompts, FixedSchedule(4), **options)
        assert torch.equal(plain.tokens, out.tokens)
        assert torch.equal(plain.query_positions, out.query_positions)
    keys = {graph.inputs.attend.shape[-1] for graph in replayed.runner._graphs.values()}
    assert keys == ({128} if family == "dream" else {64, 128})
    assert replayed.recorder.num_replayed


class Counted(Replayed):
    """Notes the numbers of rows and columns of all forwards."""

    def __init__(self, family: str, **options: Any) -> None:
        super().__init__(family, **options)
        self.play, self.predict = self.predict, self.noted
        self.sizes: list[tuple[int, ...]] = []

    def noted(self, inputs: ForwardInputs) -> torch.Tensor:
        self.sizes.append(tuple(inputs.tokens.shape))
        return self.play(inputs)


@pytest.mark.parametrize(("num_rows", "most_captured"), [(12, 4), (32, 1)])
def test_rows_that_finish_at_different_times_share_one_graph(
    num_rows: int, most_captured: int
) -> None:
    """Row n has n + 1 open positions, and fills one a step. Few rows are padded to all of them."""
    replayed = Counted("llada", max_columns=10**6)
    prompts = [[7 + row, 40, *range(3, 3 + row % 7)] for row in range(num_rows)]
    templates = [[9] * row for row in range(num_rows - 1, -1, -1)]
    options: Any = {"gen_length": num_rows, "block_length": num_rows, "templates": templates}
    options["cache"] = DualCache()
    plain = decode(replayed.model, prompts, ConfidenceThreshold(1.0), **options)
    for _ in range(2):
        out = decode(replayed, prompts, ConfidenceThreshold(1.0), **options)
        assert torch.equal(plain.tokens, out.tokens)
        assert torch.equal(plain.nfe, out.nfe)
    # The first forward has rows of several lengths, so that it is not captured.
    assert {rows for rows, _ in replayed.sizes} == set(range(1, num_rows))
    assert (num_rows < 32) <= replayed.recorder.num_captured <= most_captured
    assert num_rows == 32 or replayed.recorder.num_replayed >= 2 * num_rows - 4


@pytest.mark.parametrize(
    ("cache", "num_kinds"), [(DualCache(), 2), (PrefixCache(), 3), (FreeCache(), 3)], ids=repr
)
def test_prompts_of_one_bucket_share_graphs(cache: Any, num_kinds: int) -> None:
    """Of all columns, and of those that the cache computes: as many as one or two blocks."""
    replayed = Replayed("llada")
    options: Any = {"gen_length": 16, "block_length": 8, "cache": cache, "stop_at_eos": False}
    for length in range(113, 133, 2):
        prompt = [(7 * column + length) % 500 for column in range(length)]
        out = decode(replayed, [prompt], FixedSchedule(2), **options)
        if length % 5 == 0:
            plain = decode(replayed.model, [prompt], FixedSchedule(2), **options)
            assert torch.equal(plain.tokens, out.tokens)
    assert replayed.recorder.num_captured == num_kinds
    assert replayed.recorder.num_replayed >= 10 * 4 - 2 * num_kinds


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_two_decodes_at_a_time_do_not_meet(family: str) -> None:
    replayed = Replayed(family)
    options: Any = {"gen_length": 16, "block_length": 8, "cache": DualCache()}
    inner: list[torch.Tensor] = []

    def decode_another(event: Any) -> None:
        out = decode(replayed, PROMPTS[1:], FixedSchedule(4), **options)
        inner.append(out.tokens)

    alone = decode(replayed.model, PROMPTS[1:], FixedSchedule(4), **options).tokens
    plain = decode(replayed.model, PROMPTS, FixedSchedule(4), **options)
    out = decode(replayed, PROMPTS, FixedSchedule(4), observers=[decode_another], **options)
    assert torch.equal(plain.tokens, out.tokens)
    assert len(inner) >= 8
    assert all(torch.equal(alone, tokens) for tokens in inner)
    assert replayed.recorder.num_replayed


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
