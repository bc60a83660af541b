"""Confidence unmasking with a loop that re-masks and fills (ReMDM on LLaDA)."""

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Int
from torch import Tensor

from samplers.base import Decision, RevisingSampler
from samplers.checks import count_from
from samplers.fixed_schedule import even_quota, even_total
from samplers.logits.statistics import highest
from samplers.mask_predict import MaskPredictState
from samplers.view import View


@dataclass(frozen=True)
class ReMDMLoop(RevisingSampler[MaskPredictState]):
    """Fills most of a block, re-masks its least sure tokens again and again, and fills the rest.

    The steps that fill are those of `FixedSchedule`. After 7/8 of m steps, m the masks of the
    block, or after the last step if there are fewer, come `loop_steps` steps. Each begins by making
    the n tokens of the block [MASK] that had the least confidence when they were committed, and
    commits the n most confident masks.

    Source: Wang et al. 2025, "Remasking Discrete Diffusion Models with Inference-Time Scaling",
    https://arxiv.org/abs/2503.00307, as run on LLaDA: github.com/guanghanwang/ReMDM-LLaDA at
    169c9b9, and with a number of loop steps in ParallelBench, github.com/furiosa-ai/ParallelBench
    at 72de8f7, remdm.py, whose rule this is.
    Differs: From ParallelBench: (a) with several blocks its quota divides a block's masks by the
    steps of the whole answer, and leaves masks; here by those of the block. (b) If n exceeds the
    tokens of the block so far it re-masks the prompt; here all of those tokens. (c) If a step would
    re-mask exactly the tokens that it commits, the loop is over, because at temperature 0 every
    further step of the loop would commit those tokens too. (d) Given tokens are not counted.

    Attributes:
        steps_per_block: Steps that fill a block, at least 1.
        loop_steps: Steps of the loop.
        num_remasked: Tokens that a step of the loop re-masks, n, at least 1.

    Raises:
        ValueError: If an attribute is outside its range.
    """

    steps_per_block: Annotated[int, count_from(1)] = 32
    loop_steps: Annotated[int, count_from(0, "steps")] = 32
    num_remasked: Annotated[int, count_from(1, "tokens")] = 1

    def max_steps(self, num_masks: int) -> int:
        return min(self.steps_per_block, num_masks) + self.loop_steps

    def init(self, view: View) -> MaskPredictState:
        return MaskPredictState.at_start(view)

    def step(self, view: View, state: MaskPredictState) -> tuple[Decision, MaskPredictState]:
        masks, steps = state.masks, state.steps
        empty, filled = view.eligible & view.masked, view.eligible & ~view.masked
        start, num_remasked = self._loop(masks)
        end = start + self.loop_steps
        in_loop = (steps >= start) & (steps < end)
        filling = even_quota(masks, self.steps_per_block, steps - self.loop_steps * (steps >= end))
        quota = torch.where(in_loop, num_remasked, filling).clamp(min=1)
        chosen = highest(view.confidence, empty, quota)
        confidence = torch.where(chosen, view.confidence, state.confidence)

        enters = (steps + 1 >= start) & (steps + 1 < end)
        doubtful = highest(-confidence, filled | chosen, num_remasked * enters)
        is_idle = (doubtful == chosen).all(-1)
        doubtful = doubtful & ~is_idle[:, None]
        next_steps = torch.where(is_idle & enters, end, steps + 1)
        num_steps = masks.clamp(max=self.steps_per_block) + self.loop_steps
        # An EOS that truncates the answer may leave no mask.
        ends = (next_steps >= num_steps) | ~empty.any(-1)
        chosen = chosen | (empty & ends[:, None])
        doubtful = doubtful & ~ends[:, None]
        settle = view.eligible & ends[:, None]
        decision = Decision(chosen & ~doubtful, settle=settle, remask=filled & doubtful)
        return decision, MaskPredictState(masks, next_steps, confidence)

    def _loop(self, masks: Int[Tensor, " B"]) -> tuple[Int[Tensor, " B"], Int[Tensor, " B"]]:
        """Returns the step at which the loop begins, and how many tokens its steps re-mask."""
        start = torch.minimum(masks * 7 // 8, masks - 1).clamp(min=1, max=self.steps_per_block)
        tokens = even_total(masks, self.steps_per_block, start)
        return start, tokens.clamp(max=self.num_remasked)
