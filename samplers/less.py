"""Stable-evidence unmasking (LESS)."""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from samplers.base import Decision, Sampler
from samplers.checks import Probability, count_from, non_negative
from samplers.fixed_schedule import even_quota
from samplers.logits.statistics import highest
from samplers.view import View

# Number of most likely tokens that are compared one by one; the authors' setting.
_NUM_TOP = 8


class LessState(NamedTuple):
    """The history of a block's earlier steps.

    Attributes:
        masks: Masks of the block when it was opened.
        steps: Steps taken in the block.
        stable_steps: Successive latest steps with the same most likely token.
        tokens: The most likely tokens of the last step, -1 before the first.
        probabilities: Probabilities of these tokens.
    """

    masks: Int[Tensor, " B"]
    steps: Int[Tensor, " B"]
    stable_steps: Int[Tensor, "B W"]
    tokens: Int[Tensor, "B W n"]
    probabilities: Float[Tensor, "B W n"]


@dataclass(frozen=True)
class Less(Sampler[LessState]):
    """Commits confident positions whose leading tokens have stopped changing.

    An eligible position is accepted when its confidence reaches `threshold`, its most likely token
    was the same in the last `num_stable_steps` steps, and its drift since the last step is at most
    `drift_threshold`. Drift is the Jensen-Shannon divergence between the coarse distributions of
    this step and the last: the eight most likely tokens of each, and all others as one. All
    accepted positions are committed; a row without any falls back to the most confident ones, as
    many as the even schedule of `FixedSchedule` has at this step, and at least one.

    History starts with the block, so that the first `num_stable_steps` steps can only fall back.

    Source: "LESS" 2026, https://arxiv.org/abs/2606.16908, the rule for LLaDA.

    Differs: Only eight probabilities are kept. A token that is among the eight in only one step
    counts as 0 in the other step, where its probability is part of the rest. At a temperature above
    0 the authors compare distributions disturbed by the sampling noise; here noise draws tokens
    only.

    Attributes:
        threshold: Least probability, in [0, 1], of the proposed token.
        drift_threshold: Highest drift in nats, at least 0; it never exceeds ln 2.
        num_stable_steps: Earlier steps that must agree on the most likely token, at least 1.
        steps_per_block: Steps of the schedule that fallbacks follow, at least 1. At least as many
            as the block has tokens: one token a fallback.

    Raises:
        ValueError: If an attribute is outside its range.
    """

    threshold: Probability = 0.75
    drift_threshold: Annotated[float, non_negative("a divergence in nats")] = 0.04
    num_stable_steps: Annotated[int, count_from(1)] = 2
    steps_per_block: Annotated[int, count_from(1)] = 64

    def init(self, view: View) -> LessState:
        masks = view.eligible.sum(-1)
        # No token has id -1: the first step finds nothing that agrees.
        tokens = torch.full_like(view.tokens, -1)[..., None].expand(-1, -1, self._num_top(view))
        shares = torch.zeros_like(tokens, dtype=view.dtype)
        stable_steps = torch.zeros_like(view.tokens)
        return LessState(masks, torch.zeros_like(masks), stable_steps, tokens, shares)

    def step(self, view: View, state: LessState) -> tuple[Decision, LessState]:
        masks, steps, stable_steps, old_tokens, old_shares = state
        shares, tokens = view.likeliest(self._num_top(view))
        stable_steps = (stable_steps + 1) * (tokens[..., 0] == old_tokens[..., 0])
        drift = _coarse_divergence(tokens, shares, old_tokens, old_shares)
        accepted = view.eligible & (view.confidence >= self.threshold)
        accepted &= (stable_steps >= self.num_stable_steps) & (drift <= self.drift_threshold)
        quota = even_quota(masks, self.steps_per_block, steps).clamp(min=1) * ~accepted.any(-1)
        commit = accepted | highest(view.confidence, view.eligible, quota)
        return Decision(commit=commit), LessState(masks, steps + 1, stable_steps, tokens, shares)

    @staticmethod
    def _num_top(view: View) -> int:
        return min(_NUM_TOP, view.vocab_size)


def _coarse_divergence(
    tokens: Int[Tensor, "B W n"],
    shares: Float[Tensor, "B W n"],
    old_tokens: Int[Tensor, "B W n"],
    old_shares: Float[Tensor, "B W n"],
) -> Float[Tensor, "B W"]:
    """Returns the Jensen-Shannon divergence in nats, with all other tokens as one."""
    same = tokens[..., :, None] == old_tokens[..., None, :]
    old_here = (same * old_shares[..., None, :]).sum(-1)
    gone = old_shares.masked_fill(same.any(-2), 0.0)
    new = torch.cat([shares, torch.zeros_like(gone), _rest(shares)], -1)
    old = torch.cat([old_here, gone, _rest(old_shares)], -1)
    mean = torch.special.entr((new + old) / 2).sum(-1)
    drift: Tensor = mean - (torch.special.entr(new) + torch.special.entr(old)).sum(-1) / 2
    return drift


def _rest(shares: Float[Tensor, "B W n"]) -> Float[Tensor, "B W 1"]:
    return (1.0 - shares.sum(-1, keepdim=True)).clamp(min=0.0)
