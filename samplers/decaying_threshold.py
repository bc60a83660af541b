"""A confidence threshold that falls as masks run out (Streaming-dLLM)."""

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float, Int
from torch import Tensor

from samplers.base import Decision, Sampler
from samplers.checks import Probability, Share, count_from
from samplers.logits.float64 import widest
from samplers.logits.statistics import highest_one
from samplers.view import View


@dataclass(frozen=True)
class DecayingThreshold(Sampler[Int[Tensor, " B"]]):
    """Commits every eligible position whose confidence reaches a threshold that falls.

    With r the share of positions that are still masked, the threshold is
    `threshold` (1 - `decay` (1 - r)). The share is taken over the open block, the `window`
    positions after it, and the last position of the answer if that comes after the window.
    Positions after the block are usually masked, so that r stays near 1 until the last blocks.

    A block's first step has the plain threshold, and a row in which no position reaches it commits
    its single most confident one. The state is the number of steps taken in the block.

    Source: Streaming-dLLM 2026, https://arxiv.org/abs/2601.17917, the dynamic threshold, as in the
    authors' code; there it goes with a forward that sees no more than the window.

    Differs: The cache policy, not this rule, decides which columns the model sees. If a template
    gives tokens after the block, the masks that are left count as inside the window, as far as
    they fit. Confidence is a float32 softmax (float64 for float64 logits), the authors' float64. On
    a device without float64 the share and the threshold are float32 too, within 2^-22 of the exact
    ones.

    Attributes:
        threshold: Least probability, in [0, 1], of the proposed token while all is masked.
        decay: Share, in [0, 1], of the threshold that is lost when nothing is masked.
        window: Positions after the block that count, at least 0.

    Raises:
        ValueError: If an attribute is outside its range.
    """

    threshold: Probability = 0.9
    decay: Share = 0.3
    window: Annotated[int, count_from(0, "positions")] = 96

    def init(self, view: View) -> Int[Tensor, " B"]:
        return torch.zeros_like(view.tokens[:, 0])

    def step(self, view: View, state: Int[Tensor, " B"]) -> tuple[Decision, Int[Tensor, " B"]]:
        share = self._masked_share(view).masked_fill(state == 0, 1.0)
        threshold = self.threshold * (1.0 - self.decay * (1.0 - share))
        confident = view.eligible & (view.confidence >= threshold[:, None])
        commit = confident | highest_one(view.confidence, view.eligible)
        return Decision(commit=commit), state + 1

    def _masked_share(self, view: View) -> Float[Tensor, " B"]:
        """Returns the share of masks in the block and the positions that count after it."""
        after = (view.gen_length - 1 - view.positions[:, -1]).clamp(min=0)
        counted = torch.where(after > self.window, self.window + 1, after)
        num_positions = (view.in_answer.sum(-1) + counted).clamp(min=1)
        masks = view.eligible.sum(-1)
        masks_after = torch.minimum(counted, (view.num_left - masks).clamp(min=0))
        return (masks + masks_after).to(widest(masks.device)) / num_positions
