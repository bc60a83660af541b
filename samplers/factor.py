"""Factor unmasking (Fast-dLLM)."""

from dataclasses import dataclass
from typing import Literal

import torch

from samplers.base import Decision, Sampler
from samplers.checks import NonNegative
from samplers.logits.statistics import num_leading, ranks, sort_by_rank
from samplers.view import View

Variant = Literal["paper", "inclusive", "official"]


@dataclass(frozen=True)
class Factor(Sampler[None]):
    """Commits as many of the most confident positions as can be trusted together.

    With confidences c_(1) >= c_(2) >= ... of a row's eligible positions, the n most confident are
    committed, where n is the largest number with (n + 1) (1 - c_(n)) < factor, and at least 1. The
    left side grows with n. Its reason: if every selected confidence exceeds 1 - e and
    (n + 1) e <= 1, greedy parallel decoding equals greedy decoding of the joint distribution.

    Variants: "paper" is the rule above. "inclusive" accepts equality, `<=`. "official" accepts
    equality too, and ends the scan like the public implementations: if all but the least confident
    position pass, that one is committed as well, however unsure. With two positions left it always
    commits both.

    Source: Wu et al. 2025, "Fast-dLLM", https://arxiv.org/abs/2505.22618, factor-based parallel
    decoding; the variants as in the public implementations of the rule.

    Differs: Confidence is a float32 softmax (float64 for float64 logits), the authors' float64.

    Attributes:
        factor: How much joint error is accepted, at least 0; 0 is one token a step, infinity a
            whole block.
        variant: Reading of the rule, see above.

    Raises:
        ValueError: If an attribute is outside its range.
    """

    factor: NonNegative = 1.0
    variant: Variant = "paper"

    def step(self, view: View, state: None) -> tuple[Decision, None]:
        rank = ranks(view.confidence, view.eligible)
        confidence = sort_by_rank(view.confidence, rank)
        size = torch.arange(1, rank.shape[-1] + 1, device=rank.device)
        error = (size + 1) * (1.0 - confidence)
        is_small = error < self.factor if self.variant == "paper" else error <= self.factor
        count = num_leading(is_small).clamp(min=1)
        if self.variant == "official":
            count += count == view.eligible.sum(-1) - 1
        return Decision(commit=view.eligible & (rank < count[:, None])), state
