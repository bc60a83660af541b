"""Graphs on CUDA, and how they are captured: in part by a stand-in for `torch.cuda`."""

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

import pytest
import torch
from pretended import PROMPTS, forward
from tiny_models import MODELS
from tiny_models import load_without_tokenizer as load_model

from dllm_decode import DualCache, ForwardInputs, decode
from dllm_decode.models.graphs.capture import CudaGraphs
from samplers import FixedSchedule


class Stream(NamedTuple):
    """A stream of work; waiting costs nothing here."""

    name: str

    def wait_stream(self, other: "Stream") -> None:
        pass


class Cuda:
    """What is captured on which stream and into which pool; the stream is that of `torch.cuda`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stream = Stream("main")
        self.captures = False
        self.log: list[Any] = []
        for name, stand_in in {
            "CUDAGraph": lambda: self,
            "graph_pool_handle": count(1).__next__,
            "Stream": lambda: Stream("side"),
            "current_stream": lambda: self.stream,
            "device": lambda device: nullcontext(),
            "stream": self.switched,
            "graph": self.captured,
        }.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)

    def replay(self) -> None:
        self.log.append("replay")

    @contextmanager
    def switched(self, stream: "Stream") -> Iterator[None]:
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    @contextmanager
    def captured(
        self, graph: Any, *, pool: int, stream: "Stream", capture_error_mode: str
    ) -> Iterator[None]:
        # As torch does: it goes back to the stream before only if nothing fails.
        before, self.stream, self.captures = self.stream, stream, True
        try:
            yield
        finally:
            self.captures = False
        self.log.append((stream.name, pool))
        self.stream = before


def test_a_capture_that_fails_leaves_stream_and_pool_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda, streams = Cuda(monkeypatch), []

    def run(inputs: ForwardInputs) -> torch.Tensor:
        streams.append((cuda.stream.name, cuda.captures))
        if cuda.captures and inputs.tokens.shape[1] == 8:
            raise RuntimeError("operation not permitted when stream is capturing")
        return torch.zeros(1)

    graphs = CudaGraphs()
    play = graphs(run, forward(None, 16))
    graphs(run, forward(None, 24))
    with pytest.raises(RuntimeError, match="not permitted"):
        graphs(run, forward(None, 8))
    assert cuda.stream.name == "main"
    graphs(run, forward(None, 32))
    graphs(run, forward(None, 40))
    assert play() is play()
    # One pool for all, but for what follows a failure; one stream, which pools want.
    assert cuda.log == [
        ("side", 1), ("side", 1), ("side", 2), ("side", 2), "replay", "replay"
    ]  # fmt: skip
    # Each is run before it is captured, on the same stream. What failed is not given back.
    assert streams == [("side", False), ("side", True)] * 5
    assert len(graphs._failed) == 1


@pytest.mark.gpu
def test_the_weights_are_freed_with_the_model_on_cuda() -> None:
    """A cycle once kept them until the next collection."""
    gc.collect()
    gc.disable()
    try:
        before = torch.cuda.memory_allocated()
        model = load_model(MODELS / "llada", device="cuda", dtype=torch.float32)[0]
        options: Any = {"gen_length": 16, "block_length": 8, "cache": DualCache()}
        decode(model, PROMPTS, FixedSchedule(8), **options)
        assert model._runner.num_graphs
        held = torch.cuda.memory_allocated() - before
        del model
        assert torch.cuda.memory_allocated() - before < held / 10
    finally:
        gc.enable()


@pytest.mark.gpu
def test_a_forward_that_waits_for_the_host_runs_without_a_graph_on_cuda() -> None:
    """In a process of its own: up to torch 2.11 a failed capture is not without consequences."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, __file__], env=environment, check=True)


def fail_to_capture() -> None:
    """Makes CUDA invalidate a capture: torch then fails to end it, and keeps its stream."""
    model = load_model(MODELS / "llada", device="cuda", dtype=torch.float32)[0]
    kv_cache = model.new_kv_cache(1, 16)
    inputs = forward(kv_cache, 8)
    inputs = replace(
        inputs, **{name: vars(inputs)[name].cuda() for name in ("tokens", "positions", "wanted")}
    )
    expected = model.predict(inputs)

    def wait(module: Any, arguments: Any) -> None:
        torch.ones(1, device="cuda").item()

    hook = model.transformer.norm.register_forward_pre_hook(wait)
    with pytest.warns(UserWarning, match="cannot be replayed as a CUDA graph"):
        torch.testing.assert_close(model.predict(inputs), expected)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    hook.remove()
    torch.testing.assert_close(model.predict(inputs), expected)
    assert model._runner.failed


if __name__ == "__main__":
    fail_to_capture()
