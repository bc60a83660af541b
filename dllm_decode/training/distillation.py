"""The loop that distils: a model learns from demonstrations, on one or several devices."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import torch
from accelerate import Accelerator
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.optim import Optimizer

from dllm_decode.training.checkpoints import Progress, load_checkpoint, save_checkpoint
from dllm_decode.training.examples import Batch
from dllm_decode.training.finite import with_finite_check
from dllm_decode.training.loop import MAX_GRADIENT_NORM, Report, attention_in_training
from dllm_decode.training.objective import Objective
from dllm_decode.training.schedule import Budget, LinearDecay
from dllm_decode.training.teacher import Demonstration, make_rows


@dataclass(frozen=True)
class DistilSettings:
    """How a distillation goes, besides what is trained on what.

    Attributes:
        budget: Where the learning rate reaches zero and the run ends.
        folder: For checkpoints.
        gen_length: Columns of the answers.
        num_rows: Rows of a forward, on each device, at least 1.
        num_forwards: Forwards of a step, on each device, at least 1; gradients are averaged.
        evaluate_every: Steps between evaluations, at least 1; each is followed by a checkpoint.
        schedule: Of the learning rate.
        seed: Of masks and of the order of rows.
    """

    budget: Budget
    folder: Path
    gen_length: int
    num_rows: int = 1
    num_forwards: int = 8
    evaluate_every: int = 100
    schedule: LinearDecay = field(default_factory=LinearDecay)
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("gen_length", "num_rows", "num_forwards", "evaluate_every"):
            if vars(self)[name] < 1:
                raise ValueError(f"{name} must be at least 1, got {vars(self)[name]}.")


def distil(
    objective: Objective,
    optimisers: Sequence[Optimizer],
    demonstrations: Sequence[Demonstration],
    settings: DistilSettings,
    *,
    accelerator: Accelerator,
    evaluate: Callable[[], Mapping[str, float]],
    observe: Callable[[Report], None] = lambda report: None,
    advance: Callable[[float], None] = lambda spent: None,
) -> Progress:
    """Trains until the budget is used up; continues from the latest checkpoint in the folder.

    With a budget of samples, a run that was killed and started again gives the weights of one that
    was not: the rows of a step and their masks depend on seed and step alone. Two devices with one
    forward a step do what one device does with two.

    All devices hold the whole model; gradients are averaged over them.

    Args:
        objective: Model and loss. What is to be trained requires gradients; all else is frozen.
        optimisers: Of those weights, with their peak learning rates.
        demonstrations: What is learned, at least one; the same on every process.
        settings: Of the run.
        accelerator: Where it runs, and in which precision.
        evaluate: Measures the model as it is, on all processes; called now and then, and at the
            end.
        observe: Told how it goes, on the first process, about once a second.
        advance: Told before each step which share of the run is over, such as
            `TrajectoryForcing.advance`.

    Returns:
        How far the run has come, with the history of its evaluations.

    Raises:
        ValueError: If there are no demonstrations, or the checkpoint lacks a part or is that of
            another model.
        RuntimeError: If the loss or a weight is not finite.
    """
    if not demonstrations:
        raise ValueError("Answers to learn from must be at least one, got none.")
    run = _Run(objective, optimisers, demonstrations, settings, accelerator)
    reports = _Reports(accelerator, settings.budget, observe, run.progress.samples)
    begun_s = time.perf_counter() - run.progress.elapsed_s
    while (spent := _agreed(settings.budget.spent(run.progress), accelerator)) < 1:
        advance(spent)
        loss = run.step(spent)
        run.progress.elapsed_s = time.perf_counter() - begun_s
        reports(run.progress, loss)
        if run.progress.step % settings.evaluate_every == 0:
            with_finite_check("The loss", [loss], run.progress.step)
            run.measure(evaluate)
    if not run.is_measured:
        run.measure(evaluate)
    return run.progress


class _Losses(nn.Module):
    """The forward that an accelerator wraps: a loss, from rows and the seed of their masks."""

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.model = objective.model
        self._objective = objective

    def forward(
        self, tokens: Int[Tensor, "B L"], pads: Int[Tensor, " B"], gen_length: int, seed: int
    ) -> Float[Tensor, ""]:
        generator = torch.Generator(tokens.device).manual_seed(seed)
        with attention_in_training(tokens.device):
            return self._objective.loss(Batch(tokens, pads, gen_length), generator)


class _Run:
    """One step after another."""

    def __init__(
        self,
        objective: Objective,
        optimisers: Sequence[Optimizer],
        demonstrations: Sequence[Demonstration],
        settings: DistilSettings,
        accelerator: Accelerator,
    ) -> None:
        self._objective = objective
        self._optimisers = optimisers
        self._demonstrations = demonstrations
        self._settings = settings
        self._accelerator = accelerator
        self._peaks = [[group["lr"] for group in each.param_groups] for each in optimisers]
        found = load_checkpoint(settings.folder, objective.model, optimisers)
        self.progress = found or Progress()
        self._losses: nn.Module = accelerator.prepare_model(_Losses(objective))
        self._weights = [w for w in objective.model.parameters() if w.requires_grad]
        self._order = lru_cache(maxsize=2)(self._order_of)

    @property
    def is_measured(self) -> bool:
        """True if no step was taken since the last evaluation."""
        history = self.progress.history
        return bool(history) and history[-1].get("step") == self.progress.step

    def step(self, spent: float) -> Float[Tensor, ""]:
        """Takes one optimiser step and returns this process' loss."""
        self._set_learning_rates(spent)
        self._objective.model.train()
        accelerator, num_forwards = self._accelerator, self._settings.num_forwards
        total = torch.zeros((), device=accelerator.device)
        for i in range(num_forwards):
            number = self.progress.step * accelerator.num_processes * num_forwards
            number += accelerator.process_index * num_forwards + i
            rows = self._rows(number)
            seed = random.Random(f"{self._settings.seed};masks;{number}").getrandbits(62)
            is_last = i == num_forwards - 1
            with nullcontext() if is_last else accelerator.no_sync(self._losses):
                loss = self._losses(rows.tokens, rows.pads, rows.gen_length, seed)
                accelerator.backward(loss / num_forwards)
            total += loss.detach() / num_forwards
        nn.utils.clip_grad_norm_(self._weights, MAX_GRADIENT_NORM)
        for optimiser in self._optimisers:
            optimiser.step()
            optimiser.zero_grad()
        self.progress.step += 1
        num_all = accelerator.num_processes * num_forwards * self._settings.num_rows
        self.progress.samples += num_all
        return total

    def measure(self, evaluate: Callable[[], Mapping[str, float]]) -> None:
        """Evaluates, notes the result and writes a checkpoint."""
        with_finite_check("The weights", self._weights, self.progress.step)
        self._objective.model.eval()
        now = {"step": float(self.progress.step), "samples": float(self.progress.samples)}
        self.progress.history.append(
            now | {"elapsed_s": self.progress.elapsed_s} | dict(evaluate())
        )
        if self._accelerator.is_main_process:
            model, optimisers = self._objective.model, self._optimisers
            save_checkpoint(self._settings.folder, model, optimisers, self.progress)
        self._accelerator.wait_for_everyone()

    def _rows(self, number: int) -> Batch:
        """Lays out the rows of a forward, by its number in the whole run."""
        num_rows, num_all = self._settings.num_rows, len(self._demonstrations)
        places = range(number * num_rows, (number + 1) * num_rows)
        chosen = [self._order(place // num_all)[place % num_all] for place in places]
        return make_rows(
            [self._demonstrations[i] for i in chosen],
            gen_length=self._settings.gen_length,
            eos_id=self._objective.eos_id,
            device=self._accelerator.device,
        )

    def _order_of(self, epoch: int) -> Sequence[int]:
        order = list(range(len(self._demonstrations)))
        random.Random(f"{self._settings.seed};order;{epoch}").shuffle(order)
        return order

    def _set_learning_rates(self, spent: float) -> None:
        factor = self._settings.schedule.factor(spent)
        for optimiser, peaks in zip(self._optimisers, self._peaks, strict=True):
            for group, peak in zip(optimiser.param_groups, peaks, strict=True):
                group["lr"] = peak * factor


class _Reports:
    """Tells an observer how it goes, about once a second."""

    def __init__(
        self,
        accelerator: Accelerator,
        budget: Budget,
        observe: Callable[[Report], None],
        samples: int,
    ) -> None:
        self._accelerator = accelerator
        self._budget = budget
        self._observe = observe
        self._last_s = time.perf_counter()
        self._samples = samples

    def __call__(self, progress: Progress, loss: Float[Tensor, ""]) -> None:
        # By the first process' clock: the others would wait for it.
        seconds_s = time.perf_counter() - self._last_s
        if seconds_s < 1.0 and self._budget.spent(progress) < 1:
            return
        with_finite_check("The loss", [loss], progress.step)
        pace = (progress.samples - self._samples) / max(seconds_s, 1e-9)
        self._last_s, self._samples = time.perf_counter(), progress.samples
        if self._accelerator.is_main_process:
            self._observe(Report(progress, self._budget.spent(progress), loss.item(), pace))


def _agreed(spent: float, accelerator: Accelerator) -> float:
    """Returns what the first process says, since clocks differ."""
    if accelerator.num_processes == 1:
        return spent
    told = torch.tensor([spent if accelerator.is_main_process else 0.0])
    agreed: Tensor = accelerator.reduce(told.to(accelerator.device), "sum")
    return float(agreed)
