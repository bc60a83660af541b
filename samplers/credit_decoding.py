"""Credit for tokens that keep being the most likely (CreditDecoding), around any sampler."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from samplers.base import Decision
from samplers.checks import NonNegative, Share
from samplers.facts import Fact
from samplers.view import View
from samplers.wrapper import Wrapper

# Least number of pairs of token and credit per position, because a short block may take more steps
# than it has positions.
_MIN_SLOTS = 32


class CreditState(NamedTuple):
    """The credit of each position, as pairs of token and credit, and the base's state.

    Attributes:
        tokens: Token ids, each at most once per position; -1 marks a free slot.
        values: The credit of these tokens, 0 in free slots.
        base: The state of the wrapped sampler.
    """

    tokens: Int[Tensor, "B W R"]
    values: Float[Tensor, "B W R"]
    base: Any


@dataclass(frozen=True)
class CreditDecoding(Wrapper[CreditState]):
    """Raises tokens that were often the most likely ones, then lets another sampler decide.

    At each step, for every eligible position with distribution p and most likely token v*, credit
    C[v] becomes beta C[v] + [v = v*] p[v]^gamma. The base then sees p multiplied by
    (1 + C)^alpha and normalised: its proposals, confidences, margins and entropies all follow.

    Credit starts at 0 in each block and is dropped where a token is committed. A position
    has credit only for tokens that were most likely in one of its steps. It keeps as many tokens
    as the block has positions, and at least 32; a further token replaces that of least credit.

    Source: Wang et al. 2025, "CreditDecoding", https://arxiv.org/abs/2510.06133, Eq. 6-7: the
    credit is updated first, then fused with the same step's logits.

    Differs: The base decides, not a threshold as in the paper; so a row commits at least one token.
    Constants are those of the final paper; the authors' dInfer has alpha 0.7, beta 0.8, and also
    commits positions within 1e-5 of the best. The variant with adaptive constants is not offered.
    At a temperature above 0 tokens are drawn from the fused distribution.

    Attributes:
        base: The sampler that decides; it must give `Fact.FINAL_TOKENS`.
        alpha: Weight of the credit in the logits, at least 0; 0 is the base alone.
        beta: Share of the credit that survives a step, in [0, 1].
        gamma: Exponent of the probability that is credited, at least 0.

    Raises:
        ValueError: If an attribute is outside its range, or the base cannot be wrapped.
    """

    alpha: NonNegative = 0.65
    beta: Share = 0.7
    gamma: NonNegative = 0.2

    @property
    def needs(self) -> frozenset[Fact]:
        # Credit belongs to a position, and does not depend on which masks are open around it.
        return self.base.needs

    def init(self, view: View) -> CreditState:
        num_slots = max(_MIN_SLOTS, view.block_width)
        tokens = view.tokens.new_full((*view.tokens.shape, num_slots), -1)
        credit = torch.zeros_like(tokens, dtype=view.dtype)
        # With a bias, as in every step, so that the state of the base keeps its dtype.
        fused = view.with_logit_bias(view.most_likely[..., None], credit[..., :1])
        return CreditState(tokens, credit, self.base.init(fused))

    def step(self, view: View, state: CreditState) -> tuple[Decision, CreditState]:
        tokens, credit, inner = state
        best = view.most_likely[..., None]
        # The token's slot if it has one, else the first free slot, else the slot of least credit.
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
        return decision, CreditState(updated, credit, inner)
