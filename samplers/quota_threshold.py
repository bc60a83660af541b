"""A threshold together with a schedule (LLaDA2.0, Fast-dLLM on Dream)."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from samplers.base import Decision, Sampler
from samplers.checks import Probability, count_from
from samplers.fixed_schedule import ScheduleState, even_quota, even_total
from samplers.logits.statistics import highest, ranks
from samplers.view import View

Quota = Literal["least", "most"]


@dataclass(frozen=True)
class QuotaThreshold(Sampler[ScheduleState]):
    """Commits confident positions, with a schedule as the least or the highest number.

    With quota "least", n positions are due in a step, by the even schedule of a whole block, even
    if some of its tokens are given. If at least n confidences exceed the threshold, exactly those
    positions are committed, else the n most confident.

    With quota "most", no step leaves a block with more commits than the even schedule of its masks,
    so that later steps may use the quota that a step has left. Among the most confident positions
    that the quota allows, those whose confidence reaches the threshold are committed, and always
    the first. Steps after the schedule's last may commit all masks left.

    Source: "least": Bie et al. 2025, "LLaDA2.0: Scaling Up Diffusion Language Models to 100B",
    https://arxiv.org/abs/2512.15745, `generate` of the authors' model code. "most": Wu et al. 2025,
    "Fast-dLLM", https://arxiv.org/abs/2505.22618, `confidence_threshold` of the authors' Dream code
    (`generation_utils.py`).
    Differs: "most" takes any number of masks, the authors' only multiples of the number of steps.

    Attributes:
        threshold: Probability, in [0, 1], of a confident proposal.
        steps_per_block: Steps of the schedule, at least 1.
        quota: The schedule is a lower bound ("least") or an upper bound ("most").

    Raises:
        ValueError: If an attribute is outside its range.
    """

    threshold: Probability = 0.9
    steps_per_block: Annotated[int, count_from(1)] = 32
    quota: Quota = "least"

    def init(self, view: View) -> ScheduleState:
        # Columns after the row's end may follow a short last block.
        is_planned = view.masked | ~view.after_answer
        masks = is_planned if self.quota == "least" else view.eligible
        return ScheduleState.at_start(masks.sum(-1))

    def step(self, view: View, state: ScheduleState) -> tuple[Decision, ScheduleState]:
        after = ScheduleState(state.masks, state.steps + 1)
        if self.quota == "most":
            return Decision(self._within_quota(view, state)), after
        due = even_quota(state.masks, self.steps_per_block, state.steps).clamp(min=1)
        confident = view.eligible & (view.confidence > self.threshold)
        best = highest(view.confidence, view.eligible, due)
        enough = confident.sum(-1) >= due
        return Decision(torch.where(enough[:, None], confident, best)), after

    def _within_quota(self, view: View, state: ScheduleState) -> Tensor:
        """Selects the confident positions within the quota, and the most confident one."""
        masks, steps = state
        left = view.eligible.sum(-1)
        quota = even_total(masks, self.steps_per_block, steps + 1) - (masks - left)
        rank = ranks(view.confidence, view.eligible)
        allowed = (rank < quota[:, None]) & (view.confidence >= self.threshold)
        return view.eligible & (allowed | (rank == 0))
