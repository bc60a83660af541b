"""KL-adaptive stability unmasking (KLASS)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from samplers.base import Decision, Sampler, State
from samplers.fixed_schedule import even_quota
from samplers.logits.statistics import divergence, highest
from samplers.view import View


@dataclass(frozen=True)
class Klass(Sampler):
    """Commits confident positions whose distribution has stopped moving.

    An eligible position is ready when its confidence exceeds `threshold` and in each of the last
    `num_stable_steps` steps the divergence KL(new || old) of its distribution from the step before
    was below `kl_threshold`. All ready positions are committed; a row without any falls back to the
    most confident ones, as many as the even schedule of `FixedSchedule` has at this step, and at
    least one.

    History starts with the block: a divergence needs two forwards, so the first `num_stable_steps`
    steps can only fall back. The state is the last step's logits, as large as a view.

    Source: Kim et al. 2025, "KLASS: KL-Guided Fast Inference in Masked Diffusion Models",
    https://arxiv.org/abs/2511.05664. The probabilities are smoothed by 1e-12 inside the
    logarithms, as in the authors' code.

    Differs: History is reset at each block, where the authors keep that of positions beyond it.
    Their fallback may take more positions than are masked and then overwrites committed tokens; a
    block of theirs may end with masks left. Neither happens here. At a temperature above 0 they
    compare distributions disturbed by the sampling noise; here noise draws tokens only. Their
    options to commit one ready position only are not offered.

    Attributes:
        threshold: Probability, in [0, 1], that the proposal must exceed.
        kl_threshold: Divergence in nats below which a position counts as stable, at least 0.
        num_stable_steps: Stable steps in a row that are needed, at least 1.
        steps_per_block: Steps of the schedule that fallbacks follow, at least 1. No fewer than the
            block has tokens: one token a fallback.

    Raises:
        ValueError: If an attribute is outside its range.
    """

    threshold: float = 0.9
    kl_threshold: float = 0.01
    num_stable_steps: int = 2
    steps_per_block: int = 64

    def __post_init__(self) -> None:
        if not 0.0 <= self.threshold <= 1.0:
            raise ValueError(f"threshold is a probability in [0, 1], got {self.threshold}.")
        if not self.kl_threshold >= 0.0:
            raise ValueError(
                f"kl_threshold is a divergence in nats, at least 0, got {self.kl_threshold}."
            )
        for name in ("num_stable_steps", "steps_per_block"):
            if vars(self)[name] < 1:
                raise ValueError(f"{name} is at least 1, got {vars(self)[name]}.")

    @property
    def reads_committed(self) -> bool:
        # The last step's logits are compared with those of this one, whichever were masked.
        return True

    def init(self, view: View) -> State:
        masks = view.eligible.sum(-1)
        return masks, torch.zeros_like(masks), torch.zeros_like(view.tokens), view.all_logits

    def step(self, view: View, state: State) -> tuple[Decision, State]:
        assert isinstance(state, tuple)
        masks, steps, stable, previous = state
        assert isinstance(masks, Tensor)
        assert isinstance(steps, Tensor)
        assert isinstance(stable, Tensor)
        assert isinstance(previous, Tensor)
        # A block's first step has nothing to compare with: `previous` is then its own logits.
        still = divergence(view.all_logits, previous) < self.kl_threshold
        stable = (stable + 1) * (still & (steps > 0)[:, None])
        ready = view.eligible & (view.confidence > self.threshold)
        ready &= stable >= self.num_stable_steps
        quota = even_quota(masks, self.steps_per_block, steps).clamp(min=1) * ~ready.any(-1)
        commit = ready | highest(view.confidence, view.eligible, quota)
        return Decision(commit=commit), (masks, steps + 1, stable, view.all_logits)
