"""Wide-in, narrow-out unmasking that takes tokens back (WINO)."""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from samplers.base import Decision, Sampler
from samplers.checks import Probability, Share, count_from
from samplers.facts import Fact
from samplers.logits.float64 import in_float64
from samplers.logits.statistics import highest, highest_one
from samplers.view import View


class WinoState(NamedTuple):
    """The positions that held a token at the start, and the size of the last commit.

    Attributes:
        held_at_start: Positions that held a token when the block was opened; never re-masked.
        last_accepts: Tokens committed in the last step.
    """

    held_at_start: Bool[Tensor, "B W"]
    last_accepts: Int[Tensor, " B"]


@dataclass(frozen=True)
class Wino(Sampler[WinoState]):
    """Commits generously, and re-masks tokens that the model would not have predicted there.

    Wide in: eligible positions whose confidence exceeds `low_threshold` are committed, at most
    max(`min_accepts`, min(`max_accepts`, `accept_share` x masks)) of them, the most confident
    first, and at least one. Narrow out: the same forward predicts each position of the block
    without attending to its token. A token of an earlier step of the block whose probability there
    is below `high_threshold` is re-masked, least probable first. A step re-masks fewer tokens than
    the step before committed, and none if it commits a single token.

    A block ends within as many steps as it has masks, because step t re-masks fewer tokens than
    step t-1 committed, so that each step adds at least one token for good. Tokens of a block's last
    step are never verified. Given tokens are never re-masked.

    Source: Hong et al. 2025, "Wide-In, Narrow-Out", https://arxiv.org/abs/2507.18578; the limits
    on both sides are those of the authors' decoding.py.

    Differs: Each row is decided alone, the authors' code is for one row. Confidence is a float32
    softmax, theirs float64. With `stop_at_eos` a row may stop with tokens before the EOS that a
    later step would have re-masked.

    Attributes:
        low_threshold: Probability, in [0, 1], that a proposal must exceed.
        high_threshold: Least probability, in [0, 1], that a committed token must keep.
        accept_share: Share of the block's masks, in [0, 1], that a step commits at most.
        min_accepts: Least value, at least 1, of the limit of tokens a step.
        max_accepts: Highest value, at least `min_accepts`, of the limit of tokens a step.

    Raises:
        ValueError: If an attribute is outside its range.
    """

    low_threshold: Probability = 0.6
    high_threshold: Probability = 0.9
    accept_share: Share = 0.7
    min_accepts: Annotated[int, count_from(1, "tokens")] = 5
    max_accepts: Annotated[int, count_from(1, "tokens")] = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_accepts > self.max_accepts:
            raise ValueError(
                f"min_accepts must be at most max_accepts={self.max_accepts}, "
                f"got {self.min_accepts}."
            )

    @property
    def needs(self) -> frozenset[Fact]:
        return super().needs | {
            Fact.LEAVE_ONE_OUT, Fact.OWN_COLUMN_LOGITS, Fact.SEES_BOTH_WAYS, Fact.EVERY_COLUMN,
        }  # fmt: skip

    @property
    def gives(self) -> frozenset[Fact]:
        return frozenset()

    def init(self, view: View) -> WinoState:
        return WinoState(~view.masked, torch.ones_like(view.tokens[:, 0]))

    def step(self, view: View, state: WinoState) -> tuple[Decision, WinoState]:
        assert view.leave_one_out is not None
        held_at_start, last_accepts = state
        limit = (self.accept_share * in_float64(view.eligible.sum(-1))).long()
        limit = limit.clamp(self.min_accepts, self.max_accepts).to(last_accepts.device)
        wide = view.eligible & (view.confidence > self.low_threshold)
        commit = highest(view.confidence, wide, limit)
        commit |= highest_one(view.confidence, view.eligible)
        accepts = commit.sum(-1)
        weak = ~view.masked & ~held_at_start & (view.leave_one_out < self.high_threshold)
        remask = highest(-view.leave_one_out, weak & (accepts > 1)[:, None], last_accepts - 1)
        return Decision(commit=commit, remask=remask), WinoState(held_at_start, accepts)
