"""Fixed number of tokens a step (LLaDA, Dream)."""

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from samplers.base import Decision, Sampler
from samplers.checks import count_from
from samplers.logits.float64 import in_float64
from samplers.logits.statistics import highest
from samplers.view import Order, View

Schedule = Literal["even", "dream"]

# Dream's default `eps`: the noise level at which its time grid ends.
_DREAM_EPS = 1e-3


class ScheduleState(NamedTuple):
    """How far each row is in a schedule.

    Attributes:
        masks: Positions that the schedule commits, such as the masks of the block when it opened.
        steps: Steps taken in the block.
    """

    masks: Int[Tensor, " B"]
    steps: Int[Tensor, " B"]

    @staticmethod
    def at_start(masks: Int[Tensor, " B"]) -> "ScheduleState":
        """Returns the state before the first step."""
        return ScheduleState(masks, torch.zeros_like(masks))


@dataclass(frozen=True)
class FixedSchedule(Sampler[ScheduleState]):
    """Commits a number of tokens per step that is fixed when a block opens.

    With m masks in the block and S steps, step r = 0, 1, ... of the even schedule commits
    floor(m / S) tokens, and one more while r < m mod S: the remainder goes to the first steps.
    With more steps than masks, each step commits one token. The last step commits all masks left,
    because an earlier step may have committed less than its share. The positions committed are
    the first in `order`: highest confidence, highest margin (most likely less second most
    likely), lowest entropy, or random.

    Dream's schedule has the time grid t_k = 1 - k (1 - eps) / S, eps = 0.001. Step k commits
    floor(m (1 - t_{k+1} / t_k)) of the m positions masked by then, the last step all.

    Source: Nie et al. 2025, "Large Language Diffusion Models", https://arxiv.org/abs/2502.09992,
    low-confidence and random remasking of the authors' generate.py; Ye et al. 2025, "Dream 7B",
    https://arxiv.org/abs/2508.15487, `maskgit_plus`, `topk_margin` and `entropy` of the authors'
    generation code.

    Differs: Steps whose quota is zero are skipped, not run: they cost a forward and change nothing.
    Confidence is a softmax in float32; theirs in bfloat16 has ties near 1. Dream's quota counts
    each row's own masks, not the mean over the batch. Margin and entropy describe the distribution
    at temperature 1, Dream's the tempered and truncated one. Dream's `origin`, whose steps draw how
    many positions to commit, is not offered.

    Attributes:
        steps_per_block: Steps in which a whole block is committed, at least 1. LLaDA's `steps` is
            the total: `steps / (gen_length / block_length)`.
        order: Which positions come first.
        schedule: How many positions a step commits.

    Raises:
        ValueError: If an attribute is outside its range.
    """

    steps_per_block: Annotated[int, count_from(1)] = 32
    order: Order = "confidence"
    schedule: Schedule = "even"

    def init(self, view: View) -> ScheduleState:
        return ScheduleState.at_start(view.eligible.sum(-1))

    def step(self, view: View, state: ScheduleState) -> tuple[Decision, ScheduleState]:
        masks, steps = state
        if self.schedule == "even":
            quota = quota_to_the_end(view, state, self.steps_per_block)
        else:
            quota, steps = self._dream_quota(view.eligible.sum(-1), steps)
        # A verifier may have committed more than planned: commit at least one while masks remain.
        commit = highest(view.scores(self.order), view.eligible, quota.clamp(min=1))
        return Decision(commit=commit), ScheduleState(masks, steps + 1)

    def _dream_quota(
        self, masks: Int[Tensor, " B"], steps: Int[Tensor, " B"]
    ) -> tuple[Int[Tensor, " B"], Int[Tensor, " B"]]:
        """Returns the first quota above zero from this step on, and that quota's step."""
        num_masks = in_float64(masks)
        grid = torch.linspace(
            1.0, _DREAM_EPS, self.steps_per_block + 1, dtype=torch.float64, device=num_masks.device
        )
        share = 1.0 - grid[1:] / grid[:-1]
        share[-1] = 1.0
        quotas = (num_masks[:, None] * share).floor().long().to(masks.device)
        ahead = torch.arange(self.steps_per_block, device=masks.device) >= steps[:, None]
        step = ((quotas > 0) & ahead).long().argmax(-1)
        return quotas.gather(-1, step[:, None]).squeeze(-1), step


def quota_to_the_end(view: View, state: ScheduleState, steps_per_block: int) -> Int[Tensor, " B"]:
    """Returns the even quota of a step; the last step of a block commits all masks left."""
    is_last = state.steps >= steps_per_block - 1
    quota = even_quota(state.masks, steps_per_block, state.steps)
    return torch.where(is_last, view.eligible.sum(-1), quota)


def steps_before(view: View, num_steps: int) -> Int[Tensor, " B"] | int:
    """Returns the steps of a schedule of `num_steps` for the answer that precede the open block."""
    return (view.start + view.block_start) * num_steps // view.gen_length


def even_quota(
    masks: Int[Tensor, " B"], steps_per_block: int, steps: Int[Tensor, " B"]
) -> Int[Tensor, " B"]:
    """Returns how many of a block's masks the even schedule commits at a step; 0 after its last."""
    quota = masks // steps_per_block + (steps < masks % steps_per_block)
    return quota * (steps < steps_per_block)


def even_total(
    masks: Int[Tensor, " B"], steps_per_block: int, steps: Int[Tensor, " B"]
) -> Int[Tensor, " B"]:
    """Returns how many of a block's masks the even schedule has committed after some steps."""
    total = steps * (masks // steps_per_block) + torch.minimum(steps, masks % steps_per_block)
    return torch.minimum(total, masks)
