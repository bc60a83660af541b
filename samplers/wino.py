"""Wide-in, narrow-out unmasking that takes tokens back (WINO)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from samplers.base import Decision, Sampler, State
from samplers.logits.statistics import highest, highest_one
from samplers.view import View


@dataclass(frozen=True)
class Wino(Sampler):
    """Commits generously and makes tokens [MASK] again that the model would not have put there.

    Wide in: eligible positions whose confidence exceeds `low_threshold` are committed, at most
    max(`min_accepts`, min(`max_accepts`, `accept_share` x masks)) of them, the most confident
    first, and at least one. Narrow out: the same forward predicts each position of the block
    without attending to its token. Where a token committed in an earlier step of the block has a
    probability below `high_threshold` there, it is taken back; but fewer than the last step
    committed, the least probable first, and none in a step that commits a single token.

    Ends within as many steps as the block has masks: what step t takes back is less than step t-1
    committed, so each step adds at least one token for good. Tokens of a block's last step are
    never verified. Given tokens are never taken back.

    Source: Hong et al. 2025, "Wide-In, Narrow-Out", https://arxiv.org/abs/2507.18578; the limits
    on both sides are those of the authors' decoding.py.

    Differs: Every row for itself, the authors' code is for one row. Confidence is a float32
    softmax, theirs float64. With `stop_at_eos` a row may stop with tokens before the EOS that a
    later step would have taken back.

    Attributes:
        low_threshold: Probability, in [0, 1], that a proposal must exceed.
        high_threshold: Least probability, in [0, 1], that a committed token must keep.
        accept_share: Share of the block's masks, in [0, 1], that a step commits at most.
        min_accepts: Limit of tokens a step that `accept_share` does not go below, at least 1.
        max_accepts: Limit of tokens a step that it does not exceed, at least `min_accepts`.

    Raises:
        ValueError: If an attribute is outside its range.
    """

    low_threshold: float = 0.6
    high_threshold: float = 0.9
    accept_share: float = 0.7
    min_accepts: int = 5
    max_accepts: int = 20

    def __post_init__(self) -> None:
        for name in ("low_threshold", "high_threshold"):
            if not 0.0 <= vars(self)[name] <= 1.0:
                raise ValueError(f"{name} is a probability in [0, 1], got {vars(self)[name]}.")
        if not 0.0 <= self.accept_share <= 1.0:
            raise ValueError(f"accept_share is a share in [0, 1], got {self.accept_share}.")
        if not 1 <= self.min_accepts <= self.max_accepts:
            raise ValueError(
                f"min_accepts is between 1 and max_accepts={self.max_accepts}, "
                f"got {self.min_accepts}."
            )

    @property
    def leave_one_out(self) -> bool:
        return True

    def init(self, view: View) -> State:
        return ~view.masked, torch.ones_like(view.tokens[:, 0])

    def step(self, view: View, state: State) -> tuple[Decision, State]:
        assert view.leave_one_out is not None
        assert isinstance(state, tuple)
        given, last_accepts = state
        assert isinstance(given, Tensor)
        assert isinstance(last_accepts, Tensor)
        limit = (self.accept_share * view.eligible.sum(-1).double()).long()
        limit = limit.clamp(self.min_accepts, self.max_accepts)
        wide = view.eligible & (view.confidence > self.low_threshold)
        commit = highest(view.confidence, wide, limit)
        commit |= highest_one(view.confidence, view.eligible)
        accepts = commit.sum(-1)
        weak = ~view.masked & ~given & (view.leave_one_out < self.high_threshold)
        remask = highest(-view.leave_one_out, weak & (accepts > 1)[:, None], last_accepts - 1)
        return Decision(commit=commit, remask=remask), (given, accepts)
