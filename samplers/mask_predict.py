"""Fill everything, then doubt the least probable tokens (Mask-Predict)."""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from samplers.base import Decision, RevisingSampler
from samplers.checks import count_from
from samplers.logits.statistics import highest
from samplers.view import View


class MaskPredictState(NamedTuple):
    """How far each row is, and how sure the model was of each token.

    Attributes:
        masks: Masks of the block when it was opened.
        steps: Steps taken in the block.
        confidence: Confidence of each token when it was proposed.
    """

    masks: Int[Tensor, " B"]
    steps: Int[Tensor, " B"]
    confidence: Float[Tensor, "B W"]

    @staticmethod
    def at_start(view: View) -> "MaskPredictState":
        """Returns the state before the first step of a block."""
        masks = view.eligible.sum(-1)
        return MaskPredictState(masks, torch.zeros_like(masks), torch.zeros_like(view.confidence))


@dataclass(frozen=True)
class MaskPredict(RevisingSampler[MaskPredictState]):
    """Proposes all masks in each step, and makes the least probable tokens [MASK] again.

    In a block of m masks, step t = 1, ..., S leaves the floor(m (S - t) / S) tokens of least
    confidence masked, including tokens of earlier steps. The confidence of a token is that of the
    step that proposed it. The last step settles the block.

    Source: Ghazvininejad et al. 2019, "Mask-Predict: Parallel Decoding of Conditional Masked
    Language Models", https://arxiv.org/abs/1904.09324, section 3.
    Differs: Block by block, and of a given length. A block of fewer than S masks takes as many
    steps as it has masks, because further steps would change nothing.

    Attributes:
        steps_per_block: Steps of a block, at least 1.

    Raises:
        ValueError: If there is no step.
    """

    steps_per_block: Annotated[int, count_from(1)] = 10

    def init(self, view: View) -> MaskPredictState:
        return MaskPredictState.at_start(view)

    def step(self, view: View, state: MaskPredictState) -> tuple[Decision, MaskPredictState]:
        empty, filled = view.eligible & view.masked, view.eligible & ~view.masked
        confidence = torch.where(empty, view.confidence, state.confidence)
        num_steps = state.masks.clamp(min=1, max=self.steps_per_block)
        left = (num_steps - state.steps - 1).clamp(min=0)
        num_sure = view.eligible.sum(-1) - state.masks * left // num_steps
        # An EOS may have ended the row's block early: one more token than before is kept.
        num_sure = num_sure.maximum(filled.sum(-1) + 1)
        doubtful = view.eligible & ~highest(confidence, view.eligible, num_sure)
        settle = view.eligible & ((left == 0) | ~empty.any(-1))[:, None]
        decision = Decision(empty & ~doubtful, settle=settle, remask=filled & doubtful)
        return decision, MaskPredictState(state.masks, state.steps + 1, confidence)
