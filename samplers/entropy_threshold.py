"""Entropy-threshold unmasking (dParallel)."""

from dataclasses import dataclass
from typing import Annotated

from samplers.base import Decision, Sampler
from samplers.checks import non_negative
from samplers.logits.statistics import highest_one
from samplers.view import View


@dataclass(frozen=True)
class EntropyThreshold(Sampler[None]):
    """Commits every eligible position whose entropy does not exceed a threshold.

    If every entropy of a row does, the row's position of lowest entropy is committed.

    Source: Chen et al. 2025, "dParallel: Learnable Parallel Decoding for dLLMs",
    https://arxiv.org/abs/2509.26488, the inference rule. The comparison is `<=`, as in the
    authors' code for LLaDA; their code for Dream has `<`.

    Differs: Entropy comes from a float32 softmax (float64 for float64 logits) and is exact; the
    authors' is float64 with 1e-12 added inside the logarithm.

    Attributes:
        threshold: Highest entropy in nats, at least 0.

    Raises:
        ValueError: If the threshold is negative.
    """

    threshold: Annotated[float, non_negative("an entropy in nats")] = 0.5

    def step(self, view: View, state: None) -> tuple[Decision, None]:
        certain = view.eligible & (view.entropy <= self.threshold)
        return Decision(commit=certain | highest_one(-view.entropy, view.eligible)), state
