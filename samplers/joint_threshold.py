"""Two thresholds, one to commit and one to edit (LLaDA 2.1)."""

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Int
from torch import Tensor

from samplers.base import Decision, RevisingSampler
from samplers.checks import NonNegative, Probability, count_from
from samplers.logits.statistics import highest
from samplers.view import View


@dataclass(frozen=True)
class JointThreshold(RevisingSampler[Int[Tensor, " B"]]):
    """Commits confident proposals, and replaces tokens that the model no longer prefers.

    A step commits every eligible position whose confidence exceeds `threshold`, and at least the
    `at_least` most confident ones. It also edits every position of the block that a sampler has
    filled, if the model now prefers another token whose probability exceeds `edit_threshold`. Both
    follow one forward.

    A full block goes on until a step edits nothing, or for `max_edit_steps` steps: at an edit
    threshold of 0 tokens may alternate without end, and only this budget stops them. A block of m
    masks therefore takes at most m + `max_edit_steps` steps.

    Source: LLaDA 2.1 2026, the M2T and T2T rule as in SGLang's `joint_threshold.py` and dllm's
    sampler. Speed mode is (0.5, 0, 16), quality mode (0.7, 0.5, 16), dllm's default
    (0.95, 0.9, 16).
    Differs: A step that the budget forbids is not run; SGLang runs the step and drops its result.
    No forward is spent on storing keys and values. [MASK] is never written. At a temperature above
    0 a full block draws with the same noise at each step.

    Attributes:
        threshold: Probability, in [0, 1], that a proposal must exceed to be committed.
        edit_threshold: Probability, in [0, 1], that a token must exceed to take another's place.
        max_edit_steps: Steps that a full block may take, at least 0.
        at_least: Fewest positions, at least 1, that a step commits, if that many are left.
        penalty: Number, at least 0, subtracted at each column from the logit of the token in the
            block's column before it.

    Raises:
        ValueError: If an attribute is outside its range.
    """

    threshold: Probability = 0.5
    edit_threshold: Probability = 0.0
    max_edit_steps: Annotated[int, count_from(0, "steps")] = 16
    at_least: Annotated[int, count_from(1, "positions")] = 1
    penalty: NonNegative = 0.0

    def max_steps(self, num_masks: int) -> int:
        return num_masks + self.max_edit_steps

    def init(self, view: View) -> Int[Tensor, " B"]:
        """Returns the steps that each row has taken while its block had no mask."""
        return torch.zeros_like(view.tokens[:, 0])

    def step(self, view: View, state: Int[Tensor, " B"]) -> tuple[Decision, Int[Tensor, " B"]]:
        penalised, empty = self._penalised(view), view.eligible & view.masked
        commit = empty & (penalised.confidence > self.threshold)
        least = torch.full_like(state, self.at_least)
        commit |= highest(penalised.confidence, empty, least)
        spent = state + ~empty.any(-1)
        edit = view.eligible & ~view.masked & (penalised.confidence > self.edit_threshold)
        edit &= (penalised.proposal != view.tokens) & (spent <= self.max_edit_steps)[:, None]
        goes_on = (commit | edit).any(-1) & (spent < self.max_edit_steps)
        goes_on |= (empty & ~commit).any(-1)
        settle = view.eligible & ~goes_on[:, None]
        return Decision(commit | edit, penalised.proposal, settle), spent

    def _penalised(self, view: View) -> View:
        """Makes a token less likely right after itself."""
        if not self.penalty:
            return view
        logits = view.logits.clone()
        penalties = torch.full_like(logits[:, 1:, :1], -self.penalty)
        logits[:, 1:].scatter_add_(-1, view.tokens[:, :-1, None], penalties)
        return view.with_logits(logits)
