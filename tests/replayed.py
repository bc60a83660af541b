"""Forwards that are played again, on the CPU: what CUDA does is stood in for by Python."""

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
    """Records a forward as CUDA would: later plays see the recorded tensors and nothing else."""

    def __init__(self) -> None:
        self.num_recorded = self.num_played = 0

    def __call__(
        self, run: Callable[[ForwardInputs], Tensor], inputs: ForwardInputs
    ) -> Callable[[], Tensor]:
        self.num_recorded += 1
        logits = run(inputs)

        def play() -> Tensor:
            self.num_played += 1
            # Into the same tensor, as a graph does.
            return logits.copy_(run(inputs))

        return play


class Replayed:
    """A tiny mask predictor whose forwards are played again, in memories that are kept."""

    def __init__(self, family: str, **options: Any) -> None:
        self.model = tiny(family)
        self.recorder = Recorder()
        self.predict = GraphRunner(self.model.predict, record=self.recorder, **options)
        self.keeper = KVBufferPool()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def new_kv_cache(self, num_rows: int, num_slots: int) -> KVCache:
        return roomy(self.model, num_rows, num_slots, self.keeper)


def roomy(model: Any, num_rows: int, num_slots: int, keeper: KVBufferPool) -> KVCache:
    """A memory with a spare slot, as a model on CUDA has it."""
    shape = model.transformer.config
    size = (shape.num_layers, num_rows, shape.num_kv_heads, num_slots, shape.head_dim)
    return keeper.kv_cache(size, dtype=model.dtype, device=torch.device("cpu"))


def forward(num_columns: int = 4, *, num_rows: int = 1, token: int = 8) -> ForwardInputs:
    columns = torch.arange(num_columns).repeat(num_rows, 1)
    return ForwardInputs(tokens=columns + token, positions=columns, wanted=columns)
