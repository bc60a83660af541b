"""Captures one forward as a CUDA graph."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor

from dllm_decode.core.model import ForwardInputs

Run: TypeAlias = Callable[[ForwardInputs], Tensor]
"""Computes the logits of a forward."""

Replay: TypeAlias = Callable[[], Tensor]
"""Computes them again from the same tensors, whose contents may have changed."""

Capture: TypeAlias = Callable[[Run, ForwardInputs], Replay]
"""Captures a forward, after running it once."""


class CudaGraphs:
    """Captures forwards as CUDA graphs that share one pool of memory.

    A graph may overwrite the scratch of another one; what it is to keep, it copies elsewhere.
    """

    def __init__(self) -> None:
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None
        self._failed: list[torch.cuda.CUDAGraph] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> "CudaGraphs":
        return CudaGraphs()

    def __call__(self, run: Run, inputs: ForwardInputs) -> Replay:
        """Captures a forward, RuntimeError if it does what a graph cannot."""
        device, graph = inputs.tokens.device, torch.cuda.CUDAGraph()
        with torch.cuda.device(device):
            if self._stream is None:
                # torch's own side stream belongs to the device that it was first needed on.
                self._stream = torch.cuda.Stream()
            # On the stream of the capture: a kernel that is compiled or loaded late is there then.
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                run(inputs)
            pool = torch.cuda.graph_pool_handle() if self._pool is None else self._pool
            # Up to torch 2.11 a pool in which a capture failed counts as being captured for good,
            # and the allocator refers to the graph for good.
            self._pool = None
            self._failed.append(graph)
            capture = torch.cuda.graph(
                graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"
            )
            # A capture that fails leaves its own stream the current one.
            with _collector_off(), torch.cuda.stream(torch.cuda.current_stream()), capture:
                logits = run(inputs)
            self._pool = pool
            self._failed.pop()

        def replay() -> Tensor:
            graph.replay()
            return logits

        return replay


@contextmanager
def _collector_off() -> Iterator[None]:
    """Keeps garbage from being collected: a graph that dies in a capture ends that capture."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
