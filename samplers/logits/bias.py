"""Logits raised at a few tokens of each position, without a copy of the logits."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from samplers.logits.statistics import TopK, widen


class LogitBias(NamedTuple):
    """Numbers to add to the logits of a few tokens of each position.

    Every statistic of the raised distribution follows exactly from the plain one and the listed
    tokens: the weight of all tokens that are not listed is known from the plain odds. Weights are
    relative to the largest logit throughout, see `statistics.odds_against`.

    Attributes:
        tokens: Different tokens of each position, with the most likely one; -1 is an unused slot.
        values: The numbers, at least 0.
        logits: Plain logits of these tokens; -inf in unused slots.
        plain_largest: Largest plain logit.
        plain_odds: Odds against the most likely token of the plain distribution.
    """

    tokens: Int[Tensor, "B W R"]
    values: Float[Tensor, "B W R"]
    logits: Float[Tensor, "B W R"]
    plain_largest: Float[Tensor, "B W"]
    plain_odds: Float[Tensor, "B W"]

    @property
    def raised(self) -> Float[Tensor, "B W R"]:
        """Raised logits of the listed tokens."""
        return self.logits + self.values

    def largest(self) -> Float[Tensor, "B W"]:
        """Returns the largest raised logit, which always belongs to a listed token."""
        return self.raised.amax(-1)

    def odds_against(self) -> Float[Tensor, "B W"]:
        """Returns the odds against the most likely token of the raised distribution."""
        largest = self.largest()
        unlisted = (self.plain_odds - _others(self.logits, self.plain_largest)).clamp(min=0.0)
        return _others(self.raised, largest) + unlisted * (self.plain_largest - largest).exp()

    def most_likely(self) -> Int[Tensor, "B W"]:
        """Returns the most likely token of the raised distribution."""
        best = self.raised.argmax(-1, keepdim=True)
        return self.tokens.gather(-1, best).squeeze(-1)

    def value_of(self, tokens: Int[Tensor, "B W"]) -> Float[Tensor, "B W"]:
        """Returns the number added to the logit of the given token at each position."""
        return (self.values * (self.tokens == tokens[..., None])).sum(-1)

    def entropy(self, plain: Float[Tensor, "B W"]) -> Float[Tensor, "B W"]:
        """Returns the raised distribution's entropy in nats, from that of the plain one."""
        plain_log = self.plain_odds.log1p()
        logs = self.logits - self.plain_largest[..., None] - plain_log[..., None]
        before = torch.special.entr(logs.exp())
        after = torch.special.entr((logs + self.values).exp())
        growth = self.largest() - self.plain_largest + self.odds_against().log1p() - plain_log
        entropy: Tensor = growth + (plain + (after - before).sum(-1)) * (-growth).exp()
        return entropy

    def top_k(self, plain: TopK) -> TopK:
        """Returns as many largest raised logits as there are plain ones, and their tokens."""
        listed = (plain.tokens[..., :, None] == self.tokens[..., None, :]).any(-1)
        logits = torch.cat([plain.logits.masked_fill(listed, -torch.inf), self.raised], -1)
        tokens = torch.cat([plain.tokens, self.tokens.clamp(min=0)], -1)
        best = logits.topk(plain.logits.shape[-1], dim=-1)
        return TopK(best.values, tokens.gather(-1, best.indices))

    def added_to(self, logits: Float[Tensor, "B W V"]) -> Float[Tensor, "B W V"]:
        """Returns a raised copy of the logits in float32 or better."""
        wide = widen(logits)
        return wide.scatter_add(-1, self.tokens.clamp(min=0), self.values.to(wide.dtype))

    def at(self, rows: Tensor | slice, columns: Tensor | slice = slice(None)) -> "LogitBias":
        """Returns the bias of some rows and columns."""
        return LogitBias(*(part[rows, columns] for part in self))


def _others(logits: Float[Tensor, "B W R"], largest: Float[Tensor, "B W"]) -> Float[Tensor, "B W"]:
    """Returns the summed weight of the listed tokens except the best one."""
    weights = (logits - largest[..., None]).exp()
    return weights.scatter(-1, logits.argmax(-1, keepdim=True), 0.0).sum(-1)
