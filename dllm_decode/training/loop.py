"""The training loop, the same for every objective."""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import Optimizer

from dllm_decode.training.checkpoints import Progress, load_checkpoint, save_checkpoint
from dllm_decode.training.examples import Batch, Kind, Rows, make_batch
from dllm_decode.training.finite import with_finite_check
from dllm_decode.training.objective import Objective
from dllm_decode.training.schedule import Budget, LinearDecay

MAX_GRADIENT_NORM = 1.0


@dataclass(frozen=True)
class Report:
    """What an observer is told, about once a second.

    Attributes:
        progress: How far the run is.
        spent: Share of the budget used up.
        loss: Mean of the last step, in nats.
        samples_per_s: Rows a second, since the report before.
    """

    progress: Progress
    spent: float
    loss: float
    samples_per_s: float


@dataclass(frozen=True)
class Settings:
    """How a run goes, besides what is trained on what.

    Attributes:
        budget: Where the learning rate reaches zero and the run ends.
        folder: For checkpoints.
        schedule: Of the learning rate.
        pause_after_s: Seconds after which the run pauses, with a checkpoint.
        evaluate_every_s: Seconds between evaluations; each is followed by a checkpoint.
        autocast: Compute in bfloat16.
        seed: Of masks and answer lengths.
    """

    budget: Budget
    folder: Path
    schedule: LinearDecay = field(default_factory=LinearDecay)
    pause_after_s: float = float("inf")
    evaluate_every_s: float = 300.0
    autocast: bool = False
    seed: int = 0


def train(
    objective: Objective,
    optimisers: Sequence[Optimizer],
    kinds: Sequence[Kind],
    rows: Rows,
    settings: Settings,
    *,
    evaluate: Callable[[], Mapping[str, float]],
    observe: Callable[[Report], None],
    resume: bool = False,
) -> Progress:
    """Trains until the budget is used up or the session is to pause.

    The losses of the kinds are weighted by their share of the rows. With `FreshRows` and a budget
    of samples, a run that was interrupted and resumed equals one that was not.

    Args:
        objective: Model and loss; the model is on its device.
        optimisers: With their peak learning rates.
        kinds: What a step is made of.
        rows: Where the rows come from.
        settings: Of the run.
        evaluate: Measures the model as it is; called now and then, and at the end of the budget.
        observe: Told how it goes.
        resume: Continue from the latest checkpoint in the folder, if there is one.

    Returns:
        How far the run has come, with the history of its evaluations.

    Raises:
        RuntimeError: If the loss or a weight is not finite.
        ValueError: If the checkpoint lacks a part, or is that of another model.
    """
    run = _Run(objective, optimisers, kinds, rows, settings)
    if resume:
        found = load_checkpoint(settings.folder, objective.model, optimisers)
        run.progress = found or run.progress
    clock = _Clock(run.progress.elapsed_s)
    reported, evaluated = run.progress.samples, clock.session_s()
    reported_s = clock.session_s()
    while settings.budget.spent(run.progress) < 1 and clock.session_s() < settings.pause_after_s:
        loss = run.step()
        run.progress.elapsed_s = clock.run_s()
        if clock.session_s() - reported_s > 1.0:
            with_finite_check("The loss", [loss], run.progress.step)
            pace = (run.progress.samples - reported) / (clock.session_s() - reported_s)
            spent = settings.budget.spent(run.progress)
            observe(Report(run.progress, spent, loss.item(), pace))
            reported, reported_s = run.progress.samples, clock.session_s()
        if clock.session_s() - evaluated > settings.evaluate_every_s:
            run.measure(evaluate, clock)
            evaluated = clock.session_s()
    run.measure(evaluate, clock)
    return run.progress


class _Clock:
    """Seconds since the run was last started, and of the whole run."""

    def __init__(self, before_s: float) -> None:
        self._before_s = before_s
        self._started = time.perf_counter()

    def session_s(self) -> float:
        return time.perf_counter() - self._started

    def run_s(self) -> float:
        return self._before_s + self.session_s()


class _Run:
    """One step after another."""

    def __init__(
        self,
        objective: Objective,
        optimisers: Sequence[Optimizer],
        kinds: Sequence[Kind],
        rows: Rows,
        settings: Settings,
    ) -> None:
        self.progress = Progress()
        self._objective = objective
        self._optimisers = optimisers
        self._kinds = kinds
        self._rows = rows
        self._settings = settings
        self._weights = list(objective.model.parameters())
        self._device = self._weights[0].device
        self._peaks = [[group["lr"] for group in each.param_groups] for each in optimisers]
        self._share = sum(kind.num_rows / kind.period for kind in kinds)

    def step(self) -> Float[Tensor, ""]:
        """Takes one optimiser step and returns its loss."""
        self._set_learning_rates()
        self._objective.model.train()
        generator = torch.Generator(self._device)
        key = f"{self._settings.seed};{self.progress.step}"
        generator.manual_seed(random.Random(key).getrandbits(62))
        total, weight = torch.zeros((), device=self._device), 0.0
        for kind in self._kinds:
            if self.progress.step % kind.period == 0:
                batch = self._batch(kind)
                with self._arithmetic():
                    loss = self._objective.loss(batch, generator)
                share = kind.num_rows / self._share
                (loss * share).backward()
                total += loss.detach() * share
                weight += share
                self.progress.samples += kind.num_rows
        torch.nn.utils.clip_grad_norm_(self._weights, MAX_GRADIENT_NORM)
        for optimiser in self._optimisers:
            optimiser.step()
            optimiser.zero_grad()
        self.progress.step += 1
        return total / weight

    def measure(self, evaluate: Callable[[], Mapping[str, float]], clock: _Clock) -> None:
        """Evaluates, notes the result and writes a checkpoint."""
        with_finite_check("The weights", self._weights, self.progress.step)
        self._objective.model.eval()
        found = evaluate()
        self.progress.elapsed_s = clock.run_s()
        now = {"samples": float(self.progress.samples), "elapsed_s": self.progress.elapsed_s}
        self.progress.history.append(now | dict(found))
        save_checkpoint(
            self._settings.folder, self._objective.model, self._optimisers, self.progress
        )

    def _batch(self, kind: Kind) -> Batch:
        step, eos_id = self.progress.step, self._objective.eos_id
        rows = self._rows.draw(kind, step, self._device)
        return make_batch(kind, rows, step, eos_id=eos_id, seed=self._settings.seed)

    def _set_learning_rates(self) -> None:
        spent = self._settings.budget.spent(self.progress)
        factor = self._settings.schedule.factor(spent)
        for optimiser, peaks in zip(self._optimisers, self._peaks, strict=True):
            for group, peak in zip(optimiser.param_groups, peaks, strict=True):
                group["lr"] = peak * factor

    @contextmanager
    def _arithmetic(self) -> Iterator[None]:
        kind, enabled = self._device.type, self._settings.autocast
        autocast = torch.autocast(kind, dtype=torch.bfloat16, enabled=enabled)
        with attention_in_training(self._device), autocast:
            yield


def attention_in_training(device: torch.device) -> AbstractContextManager[None]:
    """Names the attention kernels of forwards whose gradients are wanted.

    On a CPU plain attention: of a step of `mini` the backward of fused attention took 40 %.
    """
    plain: AbstractContextManager[None] = sdpa_kernel(SDPBackend.MATH)
    return plain if device.type == "cpu" else nullcontext()
