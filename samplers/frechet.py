"""Fréchet-profile unmasking (Fast-dLLM++)."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch

from samplers.base import Decision, Sampler
from samplers.checks import require_at_most
from samplers.logits.float64 import in_float64
from samplers.logits.statistics import num_leading, ranks, sort_by_rank
from samplers.view import View


@dataclass(frozen=True)
class Frechet(Sampler[None]):
    """Commits the most confident positions while their joint beats every rival by a margin.

    With confidences c_(1) >= c_(2) >= ... of a row's eligible positions, the joint probability of
    the n most confident proposals is at least max(0, c_(1) + ... + c_(n) - (n - 1)), the Fréchet
    bound, and that of any other combination at most 1 - c_(n). The largest n at which the first
    exceeds the second by more than `margin` is committed, and at least 1. The difference falls
    with n.

    With equal confidences this is `Factor(1 - margin)`; otherwise it commits a superset of that.

    Source: "Fast-dLLM++" 2026, https://arxiv.org/abs/2606.02955, Fréchet profile.

    Differs: Confidence is a float32 softmax (float64 for float64 logits), the authors' float64; the
    sum is in float64. The authors' code leaves out the max(0, .), which matters only for a margin
    below 0.

    Attributes:
        margin: Lead demanded over the best rival, at most 1, where it means one token a step;
            minus infinity is a whole block.

    Raises:
        ValueError: If the margin exceeds 1.
    """

    margin: Annotated[float, partial(require_at_most, most=1.0)] = 0.25

    def step(self, view: View, state: None) -> tuple[Decision, None]:
        rank = ranks(view.confidence, view.eligible)
        confidence = in_float64(sort_by_rank(view.confidence, rank))
        num_before = torch.arange(rank.shape[-1], device=confidence.device)
        joint = (confidence.cumsum(-1) - num_before).clamp(min=0.0)
        count = num_leading(joint - (1.0 - confidence) > self.margin).clamp(min=1)
        return Decision(commit=view.eligible & (rank < count.to(rank.device)[:, None])), state
