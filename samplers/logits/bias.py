"""Logits raised at a few tokens of each position, without a copy of the logits."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from samplers.logits.statistics import TopK, widen


class LogitBias(NamedTuple):
    """What is added to the logits of a few tokens of each position.

    Every statistic of the raised distribution follows exactly from that of the plain one: with p
    the plain probabilities and b the bonus, p is reweighted to p exp(b) / S, where
    S = 1 + sum p (exp(b) - 1) runs over the raised tokens only.

    Attributes:
        tokens: Each at most once a position, the most likely one among them; -1 is an unused slot.
        values: The bonus, at least 0.
        logits: Of these tokens, without the bonus; -inf in unused slots.
        log_normaliser: log sum exp of all logits, without the bonus.
    """

    tokens: Int[Tensor, "B W R"]
    values: Float[Tensor, "B W R"]
    logits: Float[Tensor, "B W R"]
    log_normaliser: Float[Tensor, "B W"]

    def growth(self) -> Float[Tensor, "B W"]:
        """Returns log S, by which the log normaliser grows."""
        shares = (self.logits - self.log_normaliser[..., None]).exp()
        return (shares * self.values.expm1()).sum(-1).log1p()

    def most_likely(self) -> Int[Tensor, "B W"]:
        """Returns the most likely token of the raised distribution."""
        best = (self.logits + self.values).argmax(-1, keepdim=True)
        return self.tokens.gather(-1, best).squeeze(-1)

    def value_of(self, tokens: Int[Tensor, "B W"]) -> Float[Tensor, "B W"]:
        """Returns the bonus of the given token at each position."""
        return (self.values * (self.tokens == tokens[..., None])).sum(-1)

    def entropy(self, plain: Float[Tensor, "B W"]) -> Float[Tensor, "B W"]:
        """Returns the raised distribution's entropy in nats, from the plain one's."""
        logs = self.logits - self.log_normaliser[..., None]
        before = torch.special.entr(logs.exp())
        after = torch.special.entr((logs + self.values).exp())
        growth = self.growth()
        entropy: Tensor = growth + (plain + (after - before).sum(-1)) * (-growth).exp()
        return entropy

    def top_k(self, plain: TopK) -> TopK:
        """Returns as many largest raised logits as there are plain ones, and their tokens."""
        listed = (plain.tokens[..., :, None] == self.tokens[..., None, :]).any(-1)
        logits = torch.cat(
            [plain.logits.masked_fill(listed, -torch.inf), self.logits + self.values], -1
        )
        tokens = torch.cat([plain.tokens, self.tokens.clamp(min=0)], -1)
        best = logits.topk(plain.logits.shape[-1], dim=-1)
        return TopK(best.values, tokens.gather(-1, best.indices))

    def added_to(self, logits: Float[Tensor, "B W V"]) -> Float[Tensor, "B W V"]:
        """Returns a raised copy of the logits in float32 or better."""
        wide = widen(logits)
        return wide.scatter_add(-1, self.tokens.clamp(min=0), self.values.to(wide.dtype))

    def at(self, rows: Tensor | slice, columns: Tensor | slice = slice(None)) -> "LogitBias":
        """Returns the bonus of some rows and columns."""
        return LogitBias(*(part[rows, columns] for part in self))
