"""Anchor-guided unmasking (LocalLeap)."""

from dataclasses import dataclass
from typing import Annotated

import torch.nn.functional as F

from samplers.base import Decision, Sampler
from samplers.checks import Probability, count_from
from samplers.logits.statistics import highest_one
from samplers.view import View


@dataclass(frozen=True)
class LocalLeap(Sampler[None]):
    """Commits confident positions, and less confident ones close to them.

    Eligible positions whose confidence reaches `threshold` are anchors. Eligible positions at most
    `radius` away from an anchor need only `relaxed_threshold`. A row without an anchor commits its
    single most confident position.

    Tokens committed in earlier steps are no anchors, nor is anything outside the open block.

    Source: Kong et al. 2025, "Accelerating Diffusion LLM Inference via Local Determinism
    Propagation", https://arxiv.org/abs/2510.07081. The comparisons are `>=`.

    Differs: Confidence is a float32 softmax (float64 for float64 logits), the authors' float64.

    Attributes:
        threshold: Least probability of an anchor's proposal, in [0, 1].
        relaxed_threshold: Least probability near an anchor, in [0, threshold].
        radius: Reach of an anchor in positions, at least 0.

    Raises:
        ValueError: If an attribute is outside its range.
    """

    threshold: Probability = 0.9
    relaxed_threshold: Probability = 0.75
    radius: Annotated[int, count_from(0, "positions")] = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.relaxed_threshold > self.threshold:
            raise ValueError(
                f"relaxed_threshold must be a probability in [0, threshold={self.threshold}], "
                f"got {self.relaxed_threshold}."
            )

    def step(self, view: View, state: None) -> tuple[Decision, None]:
        anchors = (view.eligible & (view.confidence >= self.threshold)).float()
        near = F.max_pool1d(anchors, 2 * self.radius + 1, stride=1, padding=self.radius) > 0
        leapt = view.eligible & near & (view.confidence >= self.relaxed_threshold)
        return Decision(commit=leapt | highest_one(view.confidence, view.eligible)), state
