"""Credit for tokens that keep being the most likely (CreditDecoding), around any sampler."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from samplers.base import Decision, Sampler, State, check_base
from samplers.confidence_threshold import ConfidenceThreshold
from samplers.logits.statistics import widen
from samplers.view import Scope, View

# Of token and credit, a position; more than a short block needs, should it take more steps.
_MIN_SLOTS = 32


@dataclass(frozen=True)
class CreditDecoding(Sampler):
    """Raises tokens that were often the most likely ones, then lets another sampler decide.

    At each step, for every eligible position with distribution p and most likely token v*, credit
    C[v] becomes beta C[v] + [v = v*] p[v]^gamma. The base then sees p multiplied by
    (1 + C)^alpha and normalised: its proposals, confidences, margins and entropies all follow.

    Credit starts at nothing in each block and is dropped where a token is committed. It is kept
    exactly, as pairs of token and credit: a position has credit only for tokens that were most
    likely in one of its steps, and a block has no more steps than positions.

    Source: Wang et al. 2025, "CreditDecoding", https://arxiv.org/abs/2510.06133, Eq. 6-7: the
    credit is updated first, then fused with the same step's logits.

    Differs: The base decides, the paper's is a threshold; hence a row commits at least one token.
    Constants are those of the final paper; the authors' dInfer has alpha 0.7, beta 0.8, and also
    commits what is within 1e-5 of the best. The variant with adaptive constants is not offered. At
    a temperature above 0 tokens are drawn from the fused distribution.

    Attributes:
        base: The sampler that decides; not one that re-masks.
        alpha: Weight of the credit in the logits, at least 0; 0 is the base alone.
        beta: Share of the credit that survives a step, in [0, 1].
        gamma: Exponent of the probability that is credited, at least 0.

    Raises:
        ValueError: If an attribute is outside its range, or the base cannot be wrapped.
    """

    base: Sampler = field(default_factory=ConfidenceThreshold)
    alpha: float = 0.65
    beta: float = 0.7
    gamma: float = 0.2

    def __post_init__(self) -> None:
        check_base("CreditDecoding", self.base)
        if not self.alpha >= 0.0:
            raise ValueError(f"alpha is at least 0, got {self.alpha}.")
        if not 0.0 <= self.beta <= 1.0:
            raise ValueError(f"beta is a share in [0, 1], got {self.beta}.")
        if not self.gamma >= 0.0:
            raise ValueError(f"gamma is at least 0, got {self.gamma}.")

    @property
    def scope(self) -> Scope:
        return self.base.scope

    @property
    def reads_committed(self) -> bool:
        return self.base.reads_committed

    def check(self, *, model: str, gen_length: int, block_length: int) -> None:
        self.base.check(model=model, gen_length=gen_length, block_length=block_length)

    def max_steps(self, num_masks: int) -> int:
        return self.base.max_steps(num_masks)

    def init(self, view: View) -> State:
        num_slots = max(_MIN_SLOTS, view.tokens[:, view.block].shape[1])
        tokens = view.tokens.new_full((*view.tokens.shape, num_slots), -1)
        credit = widen(view.logits[..., :0]).new_zeros(tokens.shape)
        return tokens, credit, self.base.init(view)

    def step(self, view: View, state: State) -> tuple[Decision, State]:
        assert isinstance(state, tuple)
        tokens, credit, inner = state
        assert isinstance(tokens, Tensor)
        assert isinstance(credit, Tensor)
        best = view.most_likely[..., None]
        # The token's own slot if it has one, else the first free one, else that of least credit.
        worth = credit.masked_fill(tokens < 0, -1.0).masked_fill(tokens == best, -2.0)
        slot = worth.argmin(-1, keepdim=True)
        updated = tokens.scatter(-1, slot, best)
        credit = self.beta * torch.where(updated == tokens, credit, 0.0)
        gain = view.probability(view.most_likely) ** self.gamma
        credit = credit.scatter_add(-1, slot, gain[..., None])
        credit = torch.where(view.eligible[..., None], credit, 0.0)
        fused = view.with_logit_bias(updated, self.alpha * credit.log1p())
        decision, inner = self.base.step(fused, inner)
        if decision.tokens is None:
            decision = replace(decision, tokens=fused.proposal)
        return decision, (updated, credit, inner)
