"""KL-adaptive stability unmasking (KLASS)."""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from samplers.base import Decision, Sampler
from samplers.checks import Probability, count_from, non_negative
from samplers.fixed_schedule import even_quota
from samplers.logits.statistics import divergence, highest
from samplers.view import View


class KlassState(NamedTuple):
    """The history of a block's earlier steps.

    Attributes:
        masks: Masks of the block when it was opened.
        steps: Steps taken in the block.
        stable_steps: Successive latest steps in which the position's distribution hardly moved.
        logits: Logits of the last step.
    """

    masks: Int[Tensor, " B"]
    steps: Int[Tensor, " B"]
    stable_steps: Int[Tensor, "B W"]
    logits: Float[Tensor, "B W V"]


@dataclass(frozen=True)
class Klass(Sampler[KlassState]):
    """Commits confident positions whose distribution has stopped moving.

    An eligible position is ready when its confidence exceeds `threshold` and in each of the last
    `num_stable_steps` steps the divergence KL(new || old) of its distribution from the step before
    was below `kl_threshold`. All ready positions are committed; a row without any falls back to the
    most confident ones, as many as the even schedule of `FixedSchedule` has at this step, and at
    least one.

    History starts with the block. A divergence needs two forwards, so that the first
    `num_stable_steps` steps can only fall back. The state holds logits as large as a view's.

    Source: Kim et al. 2025, "KLASS: KL-Guided Fast Inference in Masked Diffusion Models",
    https://arxiv.org/abs/2511.05664. The probabilities are smoothed by 1e-12 inside the
    logarithms, as in the authors' code.

    Differs: History is reset at each block; the authors keep the history of positions beyond it.
    Their fallback may take more positions than are masked and then overwrites committed tokens; a
    block of theirs may end with masks left. Neither happens here. At a temperature above 0 they
    compare distributions disturbed by the sampling noise; here noise draws tokens only. Their
    options to commit one ready position only are not offered.

    Attributes:
        threshold: Probability, in [0, 1], that the proposal must exceed.
        kl_threshold: Divergence in nats below which a position counts as stable, at least 0.
        num_stable_steps: Successive stable steps that are needed, at least 1.
        steps_per_block: Steps of the schedule that fallbacks follow, at least 1. At least as many
            as the block has tokens: one token a fallback.

    Raises:
        ValueError: If an attribute is outside its range.
    """

    threshold: Probability = 0.9
    kl_threshold: Annotated[float, non_negative("a divergence in nats")] = 0.01
    num_stable_steps: Annotated[int, count_from(1)] = 2
    steps_per_block: Annotated[int, count_from(1)] = 64

    def init(self, view: View) -> KlassState:
        masks = view.eligible.sum(-1)
        stable_steps = torch.zeros_like(view.tokens)
        return KlassState(masks, torch.zeros_like(masks), stable_steps, view.logits)

    def step(self, view: View, state: KlassState) -> tuple[Decision, KlassState]:
        masks, steps, stable_steps, previous = state
        # In a block's first step, `previous` is that step's own logits, so nothing is stable.
        is_stable = divergence(view.logits, previous) < self.kl_threshold
        stable_steps = (stable_steps + 1) * (is_stable & (steps > 0)[:, None])
        ready = view.eligible & (view.confidence > self.threshold)
        ready &= stable_steps >= self.num_stable_steps
        quota = even_quota(masks, self.steps_per_block, steps).clamp(min=1) * ~ready.any(-1)
        commit = ready | highest(view.confidence, view.eligible, quota)
        return Decision(commit=commit), KlassState(masks, steps + 1, stable_steps, view.logits)
