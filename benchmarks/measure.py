"""Runs one contender in a process of its own and measures it."""

import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.floor import Columns
from dllm_decode.models import CausalTarget, MaskedTransformer
from dllm_decode.models.base import ForwardInputs, KVCache
from dllm_decode.models.targets.causal import Past, Reading


@dataclass(frozen=True)
class Measurement:
    """The answers of a contender, and their cost.

    Attributes:
        tokens: The answers, to compare contenders.
        forwards: Calls of the mask predictor.
        query_positions: Columns computed, over all rows and forwards.
        wall_s: Seconds for the whole decode, warm.
        model_s: Seconds of it inside the mask predictor, head included; `None`: the watch has not
            seen all forwards.
        target_s: Seconds of it inside a causal target.
        floor_s: Least seconds of these forwards; `None` as before.
        memory_bytes: Keys and values.
        logits_bytes: Logits of one block in every row.
        weight_bytes: All parameters of the mask predictor, embedding included.
        extra_peak_bytes: Most bytes held in addition to the weights; `None`: not known.
    """

    tokens: list[list[int]]
    forwards: int
    query_positions: int
    wall_s: float
    model_s: float | None
    target_s: float
    floor_s: float | None
    memory_bytes: int
    logits_bytes: int
    weight_bytes: int
    extra_peak_bytes: int | None

    @property
    def num_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(map(len, self.tokens))

    @property
    def outside_share(self) -> float | None:
        """Share of the time that was spent in neither model."""
        return None if self.model_s is None else 1 - (self.model_s + self.target_s) / self.wall_s

    @property
    def peak_ratio(self) -> float | None:
        """Peak over the least there can be: weights, keys, values and one block of logits."""
        if self.extra_peak_bytes is None:
            return None
        least = self.weight_bytes + self.memory_bytes + self.logits_bytes
        return (self.weight_bytes + self.extra_peak_bytes) / least


class Watch:
    """Times the forwards of models; nothing waits for a device while they run.

    Attributes:
        forwards: Columns of each forward of the mask predictor, group by group.
        memory_bytes: The most that one memory holds.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._own: list[tuple[Any, Any]] = []
        self._targets: list[tuple[Any, Any]] = []
        self.forwards: list[tuple[Columns, ...]] = []
        self.memory_bytes = 0

    def clear(self) -> None:
        """Forgets the times of a warm-up."""
        self._own.clear()
        self._targets.clear()
        self.forwards.clear()

    def model_s(self) -> float:
        """Returns the seconds inside the mask predictor; on an accelerator, by its own clock."""
        return self._seconds(self._own)

    def target_s(self) -> float:
        """Returns the seconds inside causal targets."""
        return self._seconds(self._targets)

    def seconds(self) -> list[float]:
        """Returns the seconds of each forward of the mask predictor."""
        return self._each(self._own)

    def _seconds(self, spans: list[tuple[Any, Any]]) -> float:
        return sum(self._each(spans))

    def _each(self, spans: list[tuple[Any, Any]]) -> list[float]:
        if self._device.type != "cuda":
            return [end - start for start, end in spans]
        torch.cuda.synchronize(self._device)
        return [start.elapsed_time(end) / 1000 for start, end in spans]

    def follow(self, model: MaskedTransformer) -> None:
        """Times a mask predictor; it stays the object that it is."""
        predict, predict_groups = model.predict, model.predict_groups
        new_kv_cache = model.new_kv_cache

        def timed(inputs: ForwardInputs) -> Tensor:
            self.forwards.append((_columns(inputs),))
            return self._time(self._own, partial(predict, inputs))

        def timed_groups(groups: Sequence[ForwardInputs]) -> list[Tensor]:
            self.forwards.append(tuple(_columns(inputs) for inputs in groups))
            return self._time(self._own, partial(predict_groups, groups))

        def counted(num_rows: int, num_slots: int) -> KVCache:
            kv_cache = new_kv_cache(num_rows, num_slots)
            self.memory_bytes = max(self.memory_bytes, kv_cache.num_bytes)
            return kv_cache

        model.predict, model.predict_groups = timed, timed_groups
        model.new_kv_cache = counted

    def follow_target(self, target: CausalTarget) -> None:
        """Times a causal target."""
        read = target.read

        def timed(
            past: Past,
            tokens: Tensor,
            counts: Tensor,
            *,
            num_logits: int,
            first_logits: Tensor | None = None,
            parents: Tensor | None = None,
        ) -> Reading:
            work = partial(
                read,
                past,
                tokens,
                counts,
                num_logits=num_logits,
                first_logits=first_logits,
                parents=parents,
            )
            return self._time(self._targets, work)

        target.read = timed

    def _time(self, spans: list[tuple[Any, Any]], work: Callable[[], Any]) -> Any:
        if self._device.type != "cuda":
            started = time.perf_counter()
            done = work()
            spans.append((started, time.perf_counter()))
            return done
        # Events are of the current device, whichever works.
        with torch.cuda.device(self._device):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            done = work()
            end.record()
        spans.append((start, end))
        return done


def _columns(inputs: ForwardInputs) -> Columns:
    held = inputs.kv_cache
    return Columns(
        rows=inputs.tokens.shape[0],
        computed=inputs.tokens.shape[1],
        attended=inputs.tokens.shape[1] if held is None else held.keys.shape[3],
        wanted=inputs.wanted.shape[1],
    )


def in_a_process_of_its_own(work: Callable[..., Any], *arguments: object) -> Any:
    """Calls a module-level function in a fresh process, so that its memory is its own."""
    # Imports are done once, in a server that computes nothing, and inherited by each process.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.contenders", "benchmarks.growth"])
    with context.Pool(1) as pool:
        return pool.apply(work, arguments)
