"""Confidence-threshold unmasking (Fast-dLLM)."""

from dataclasses import dataclass

from samplers.base import Decision, Sampler
from samplers.checks import Probability
from samplers.logits.statistics import highest_one
from samplers.view import View


@dataclass(frozen=True)
class ConfidenceThreshold(Sampler[None]):
    """Commits every eligible position whose confidence reaches a threshold.

    If no position of a row does, its single most confident one is committed, so that each step
    makes progress. `threshold=1.0` is in effect one token a step; `threshold=0.0` is a whole block.

    Source: Wu et al. 2025, "Fast-dLLM", https://arxiv.org/abs/2505.22618, confidence-aware
    parallel decoding. The comparison is `>=`, as in the authors' code; the paper's text says
    "exceeds".

    Differs: Confidence is a float32 softmax (float64 for float64 logits), the authors' float64.

    Attributes:
        threshold: Least probability, in [0, 1], of the proposed token.

    Raises:
        ValueError: If the threshold is not a probability.
    """

    threshold: Probability = 0.9

    def step(self, view: View, state: None) -> tuple[Decision, None]:
        confident = view.eligible & (view.confidence >= self.threshold)
        return Decision(commit=confident | highest_one(view.confidence, view.eligible)), state
