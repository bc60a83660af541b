"""Entropy-bounded unmasking (EB-Sampler)."""

from dataclasses import dataclass
from typing import Annotated, Literal

from samplers.base import Decision, Sampler
from samplers.checks import non_negative
from samplers.logits.statistics import num_leading, ranks, sort_by_rank
from samplers.view import View


@dataclass(frozen=True)
class EntropyBound(Sampler[None]):
    """Commits positions, best first, while the entropy they hold together stays bounded.

    In `order` the largest prefix is committed whose summed entropy, less its highest single
    entropy, is at most `bound`. That difference bounds the information that the prefix' positions
    have about each other. One position always qualifies.

    Source: Ben-Hamu et al. 2025, "Accelerated Sampling from Masked Diffusion Models via Entropy
    Bounded Unmasking", https://arxiv.org/abs/2505.24857. The bound supposes tokens drawn at
    temperature 1; at temperature 0 the rule is a heuristic.

    Differs: The authors have no public code. Entropies come from a float32 softmax (float64 for
    float64 logits). The paper decodes without blocks: set `block_length` to `gen_length` for that.

    Attributes:
        bound: Highest accepted value in nats, at least 0; 0 is one token a step, infinity a block.
        order: Lowest entropy first, or highest confidence, or highest margin (most likely less
            second most likely).

    Raises:
        ValueError: If an attribute is outside its range.
    """

    bound: Annotated[float, non_negative("an entropy in nats")] = 0.1
    order: Literal["entropy", "confidence", "margin"] = "entropy"

    def step(self, view: View, state: None) -> tuple[Decision, None]:
        rank = ranks(view.scores(self.order), view.eligible)
        entropy = sort_by_rank(view.entropy, rank)
        shared = entropy.cumsum(-1) - entropy.cummax(-1).values
        count = num_leading(shared <= self.bound).clamp(min=1)
        return Decision(commit=view.eligible & (rank < count[:, None])), state
