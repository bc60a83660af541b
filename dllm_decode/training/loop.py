"""The training loop, the same for every objective, on one or several devices."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

import torch
from accelerate import Accelerator
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import Optimizer

from dllm_decode.training.checkpoints import Checkpoints, Progress
from dllm_decode.training.examples import BatchT, Objective, Source

WARMUP = 0.01
"""Share of a run in which the learning rate rises."""
MAX_GRADIENT_NORM = 1.0
"""Longer gradients are shortened to this."""

Evaluate = Callable[[Progress], Mapping[str, float]]


class NotFiniteError(RuntimeError, ValueError):
    """The loss or a weight has become infinite or NaN, because the learning rates are too high."""


def linear_decay(spent: float) -> float:
    """Returns the factor of a learning rate that rises to 1, then falls to exactly 0 at the end."""
    return spent / WARMUP if spent < WARMUP else max(0.0, (1.0 - spent) / (1.0 - WARMUP))


@dataclass(frozen=True)
class Settings:
    """The settings of a run, except for its model and data.

    Attributes:
        num_samples: Rows after which the run ends, at least 1.
        folder: For checkpoints, one after each evaluation; `None`: no checkpoints.
        evaluate_every: Steps between evaluations, at least 1.
        seed: Seed of all that is random in the loss.
    """

    num_samples: int
    folder: Path | None = None
    evaluate_every: int | float = math.inf
    seed: int = 0

    def __post_init__(self) -> None:
        for name, count in (
            ("num_samples", self.num_samples), ("evaluate_every", self.evaluate_every)
        ):  # fmt: skip
            if not count >= 1:
                raise ValueError(f"{name} must be at least 1, got {count}.")


def train(
    objective: Objective[BatchT],
    optimisers: Sequence[Optimizer],
    source: Source[BatchT],
    settings: Settings,
    *,
    accelerator: Accelerator,
    evaluate: Evaluate,
    observe: Callable[[float, str], None] = lambda spent, words: None,
    resume: bool = True,
) -> Progress:
    """Trains until the run ends.

    A run that was killed and started again gives the same weights as an uninterrupted run.
    Gradients are averaged over processes, so that two processes with one forward a step replace one
    process with two. Each process holds the whole model.

    Args:
        objective: Model and loss.
        optimisers: Optimisers of the weights that require gradients, with peak learning rates.
        source: Source of the batches.
        settings: Settings of the run.
        accelerator: Device and precision of the run; used by this run alone.
        evaluate: Measures the current model on every process, from the progress of the run;
            called as the settings say, and at the end.
        observe: Called on the first process after each step, with the share of the run that is
            over and with words: steps, samples and the loss.
        resume: Continue from the latest checkpoint in the folder, if there is one.

    Returns:
        How far the run has come, with the history of its evaluations.

    Raises:
        RuntimeError: If the loss or a weight is not finite.
        ValueError: If the checkpoint cannot be read, or is of another model.
    """
    run = _Run(objective, optimisers, source, settings, accelerator)
    if resume:
        run.load()
    while run.spent < 1:
        objective.advance(run.spent)
        loss = accelerator.reduce(run.step(), "mean")
        require_finite("The loss", [loss], run.progress.step)
        if accelerator.is_main_process:
            observe(run.spent, run.said(loss.item()))
        if run.spent >= 1 or run.progress.step % settings.evaluate_every == 0:
            run.measure(evaluate)
    return run.progress


class _Losses(nn.Module, Generic[BatchT]):
    """The forward that an accelerator wraps: a loss, from a batch and the seed of its noise."""

    def __init__(self, objective: Objective[BatchT]) -> None:
        super().__init__()
        self.model = objective.model
        self._objective = objective

    def forward(self, batch: BatchT, seed: int) -> Float[Tensor, ""]:
        device = next(self.model.parameters()).device
        generator = torch.Generator(device).manual_seed(seed)
        # With fused attention, its backward on a CPU took 40 % of a step of `mini`.
        math_kernel: AbstractContextManager[None] = sdpa_kernel(SDPBackend.MATH)
        with math_kernel if device.type == "cpu" else nullcontext():
            return self._objective.loss(batch, generator)


def _trained_weights(module: nn.Module) -> list[nn.Parameter]:
    return [weight for weight in module.parameters() if weight.requires_grad]


class _Run(Generic[BatchT]):
    def __init__(
        self,
        objective: Objective[BatchT],
        optimisers: Sequence[Optimizer],
        source: Source[BatchT],
        settings: Settings,
        accelerator: Accelerator,
    ) -> None:
        self.progress = Progress()
        self._model, self._source = objective.model, source
        self._settings, self._accelerator = settings, accelerator
        self._peaks = [
            [group["lr"] for group in optimiser.param_groups] for optimiser in optimisers
        ]
        losses = _Losses(objective)
        self.losses, *self._optimisers = accelerator.prepare(losses, *optimisers)
        self._weights = _trained_weights(losses)
        self._checkpoints: Checkpoints | None = None
        if settings.folder is not None:
            self._checkpoints = Checkpoints(settings.folder, accelerator, losses, optimisers)

    def load(self) -> None:
        """Loads the latest checkpoint, if there is one."""
        if self._checkpoints is not None:
            self.progress = self._checkpoints.load()

    @property
    def spent(self) -> float:
        """The share of the run that is over, 1 at its end."""
        # The last step may go past the end.
        return min(1.0, self.progress.samples / self._settings.num_samples)

    def said(self, loss: float) -> str:
        """Returns the progress in words."""
        return f"step {self.progress.step:,}, {self.progress.samples:,} samples, loss {loss:.3f}"

    def step(self) -> Float[Tensor, ""]:
        """Takes one optimiser step and returns this process' loss."""
        self._model.train()
        accelerator = self._accelerator
        rank, world_size = accelerator.process_index, accelerator.num_processes
        parts = self._source.parts(self.progress.step, rank, world_size)
        self._set_learning_rates(world_size * sum(part.num_rows for part in parts))
        total = torch.zeros((), device=accelerator.device)
        for i, part in enumerate(parts, start=1):
            seed = random.Random(f"{self._settings.seed};{part.key}").getrandbits(62)
            with nullcontext() if i == len(parts) else accelerator.no_sync(self.losses):
                loss = self.losses(part.batch, seed)
                accelerator.backward(loss * part.weight)
            total += loss.detach() * part.weight
            self.progress.samples += world_size * part.num_rows
        accelerator.clip_grad_norm_(self._weights, MAX_GRADIENT_NORM)
        for optimiser in self._optimisers:
            optimiser.step()
            optimiser.zero_grad()
        self.progress.step += 1
        return total / sum(part.weight for part in parts)

    def measure(self, evaluate: Evaluate) -> None:
        """Evaluates, notes the result and writes a checkpoint."""
        self._model.eval()
        progress = self.progress
        require_finite("The weights", _trained_weights(self.losses), progress.step)
        counts = {"step": float(progress.step), "samples": float(progress.samples)}
        progress.history.append({**counts, **evaluate(progress)})
        if self._checkpoints is not None:
            self._checkpoints.save(progress)

    def _set_learning_rates(self, num_rows: int) -> None:
        spent = self.spent
        end = min(1.0, spent + num_rows / self._settings.num_samples)
        # Not the rate of 0 before the first step, with which a run of one step would train nothing.
        factor = linear_decay(spent) or linear_decay((spent + end) / 2)
        for optimiser, peaks in zip(self._optimisers, self._peaks, strict=True):
            for group, peak in zip(optimiser.param_groups, peaks, strict=True):
                group["lr"] = peak * factor


def require_finite(name: str, tensors: Sequence[Tensor], step: int) -> None:
    """Raises NotFiniteError if a number is infinite or NaN; waits for the device once.

    Args:
        name: What the tensors are, for the message.
        tensors: On one device.
        step: Optimiser steps done.
    """
    if torch.stack([tensor.isfinite().all() for tensor in tensors]).all():
        return
    not_finite = next(tensor for tensor in tensors if not tensor.isfinite().all())
    value = not_finite[~not_finite.isfinite()].flatten()[0].item()
    raise NotFiniteError(
        f"{name} must be finite, got {value} at step {step}; lower the learning rates."
    )
