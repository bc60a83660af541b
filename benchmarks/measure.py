"""Runs one contender in a process of its own and measures it."""

import multiprocessing
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dllm_decode.models import MaskedTransformer
from dllm_decode.models.base import Inputs, Memory


@dataclass(frozen=True)
class Measurement:
    """What a contender did and what it cost.

    Attributes:
        tokens: The answers, to compare contenders.
        forwards: Calls of the model.
        query_positions: Columns computed, over all rows and forwards.
        wall_s: Seconds for the whole decode, warm.
        model_s: Seconds of it inside the model, head included.
        extra_peak_bytes: Greatest resident memory less that with the model loaded.
        model_bytes: Bytes of the parameters.
    """

    tokens: list[list[int]]
    forwards: int
    query_positions: int
    wall_s: float
    model_s: float
    extra_peak_bytes: int
    model_bytes: int


class Timed:
    """A model that keeps the time spent in `predict`; everything else is the model's."""

    def __init__(self, model: MaskedTransformer) -> None:
        self._model = model
        self.model_s = 0.0
        self.name = model.name
        self.vocab_size = model.vocab_size
        self.mask_id = model.mask_id
        self.eos_ids = model.eos_ids
        self.banned_ids = model.banned_ids
        self.logit_shift = model.logit_shift
        self.causal_block_length = model.causal_block_length

    @property
    def device(self) -> torch.device:
        """Where tensors are expected."""
        return self._model.device

    def predict(self, inputs: Inputs) -> Tensor:
        """Runs one forward and adds up its seconds."""
        self._wait()
        started = time.perf_counter()
        logits = self._model.predict(inputs)
        self._wait()
        self.model_s += time.perf_counter() - started
        return logits

    def new_memory(self, num_rows: int, num_slots: int) -> Memory:
        """Allocates the model's key-value memory."""
        return self._model.new_memory(num_rows, num_slots)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def in_a_process_of_its_own(work: Callable[..., Any], *arguments: object) -> Any:
    """Calls a module-level function in a fresh process, so that its peak memory is its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


def peak_bytes(device: torch.device) -> int:
    """Returns the greatest memory this process has held so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
