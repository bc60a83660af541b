"""Forwards that are replayed on the CPU: what CUDA does is stood in for by Python."""

from collections.abc import Callable
from typing import Any

import torch
from spied import tiny
from torch import Tensor

from dllm_decode import ForwardInputs, KVCache
from dllm_decode.models.graphs.buffers import KVBufferPool
from dllm_decode.models.graphs.runner import GraphRunner

PROMPTS = [[17, 40, 41, 300, 5, 77], [99], [7, 7, 250, 31, 12, 13, 14, 444, 90]]


class Recorder:
    """Captures a forward as CUDA would: replays see the captured tensors and nothing else."""

    def __init__(self) -> None:
        self.num_captured = self.num_replayed = 0

    def __call__(
        self, run: Callable[[ForwardInputs], Tensor], inputs: ForwardInputs
    ) -> Callable[[], Tensor]:
        self.num_captured += 1
        run(inputs)

        def replay() -> Tensor:
            self.num_replayed += 1
            return run(inputs)

        return replay


class Replayed:
    """A tiny mask predictor whose forwards are replayed, in buffers that are kept."""

    def __init__(self, family: str, **options: Any) -> None:
        self.model = tiny(family)
        self.recorder = Recorder()
        self.runner = GraphRunner(**{"capture": self.recorder, **options})

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def predict(self, inputs: ForwardInputs) -> Tensor:
        return self.runner(self.model.predict, inputs)

    def new_kv_cache(self, num_rows: int, num_slots: int) -> KVCache:
        return self.runner.new_kv_cache(
            cache_size(self.model, num_rows, num_slots),
            dtype=self.model.dtype,
            device=torch.device("cpu"),
        )


def cache_size(model: Any, num_rows: int, num_slots: int) -> tuple[int, int, int, int, int]:
    shape = model.transformer.config
    return (shape.num_layers, num_rows, shape.num_kv_heads, num_slots, shape.head_dim)


def pooled(model: Any, num_rows: int, num_slots: int, pool: KVBufferPool) -> KVCache:
    """A cache as a model on CUDA has it."""
    size = cache_size(model, num_rows, num_slots)
    return pool.new_kv_cache(size, dtype=model.dtype, device=torch.device("cpu"))


def forward(
    kv_cache: KVCache | None, num_columns: int = 4, *, num_rows: int = 1, token: int = 8
) -> ForwardInputs:
    """A forward over the first columns and rows."""
    columns = torch.arange(num_columns).repeat(num_rows, 1)
    return ForwardInputs(
        tokens=columns + token,
        positions=columns,
        wanted=columns,
        kv_cache=kv_cache,
        slots=None if kv_cache is None else slice(0, num_columns),
        rows=None if kv_cache is None else slice(0, num_rows),
    )
