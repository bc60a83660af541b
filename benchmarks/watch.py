"""Watches a decode: the time inside models, and the columns of each forward."""

import time
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from benchmarks.floor import Columns
from dllm_decode.core.model import ForwardInputs
from dllm_decode.models import MaskedTransformer

P, T = ParamSpec("P"), TypeVar("T")


class Watch:
    """Times the forwards of models; nothing waits for a device while they run.

    Attributes:
        forwards: Columns of each forward of the mask predictor, group by group.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._spans: list[tuple[Any, Any]] = []
        self.forwards: list[tuple[Columns, ...]] = []

    def clear(self) -> None:
        """Forgets the times of a warm-up."""
        self._spans.clear()
        self.forwards.clear()

    def seconds(self) -> list[float]:
        """Returns the seconds of each forward of the mask predictor, by the device's own clock."""
        if self._device.type != "cuda":
            return [end - start for start, end in self._spans]
        torch.cuda.synchronize(self._device)
        return [start.elapsed_time(end) / 1000 for start, end in self._spans]

    def follow(self, model: MaskedTransformer) -> None:
        """Times a mask predictor by replacing two methods of the object."""
        predict = self._timed(model.predict)
        predict_groups = self._timed(model.predict_groups)

        def timed(inputs: ForwardInputs) -> Tensor:
            self.forwards.append((_columns(inputs),))
            return predict(inputs)

        def timed_groups(groups: Sequence[ForwardInputs]) -> list[Tensor]:
            self.forwards.append(tuple(_columns(inputs) for inputs in groups))
            return predict_groups(groups)

        model.predict, model.predict_groups = timed, timed_groups

    def _timed(self, work: Callable[P, T]) -> Callable[P, T]:
        def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            if self._device.type != "cuda":
                started = time.perf_counter()
                result = work(*args, **kwargs)
                self._spans.append((started, time.perf_counter()))
                return result
            # Events are recorded on the current device, so the model's is made current.
            with torch.cuda.device(self._device):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                result = work(*args, **kwargs)
                end.record()
            self._spans.append((start, end))
            return result

        return timed


def _columns(inputs: ForwardInputs) -> Columns:
    kv_cache = inputs.kv_cache
    return Columns(
        rows=inputs.tokens.shape[0],
        computed=inputs.tokens.shape[1],
        attended=inputs.tokens.shape[1] if kv_cache is None else kv_cache.keys.shape[3],
        wanted=inputs.wanted.shape[1],
    )
