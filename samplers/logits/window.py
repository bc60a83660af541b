"""Statistics of all columns of a window, from those of the columns whose logits were computed."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from samplers.logits.statistics import TopK, widen
from samplers.logits.summary import Summary


@dataclass(frozen=True, eq=False)
class WindowLogits:
    """Logits of a window; committed tokens may be certain.

    Attributes:
        tokens: Tokens of the window, as `View.tokens`.
        summary: Logits of some columns or all.
        masked: Positions whose logits are the model's.
        reads_committed: True if committed positions have the model's logits, too.
    """

    tokens: Int[Tensor, "B W"]
    summary: Summary
    masked: Bool[Tensor, "B W"]
    reads_committed: bool

    @cached_property
    def logits(self) -> Float[Tensor, "B W V"]:
        """Logits of all columns, see `View.logits`."""
        if self.reads_committed:
            return self.summary.logits
        logits = self.scattered(self.summary.logits)
        only = torch.full_like(logits, -torch.inf).scatter_(-1, self.tokens[..., None], 0.0)
        return self.replace_committed(logits, only)

    @property
    def most_likely(self) -> Int[Tensor, "B W"]:
        """The token of the highest logit, the lowest id of ties."""
        return self.replace_committed(self.scattered(self.summary.most_likely), self.tokens)

    @cached_property
    def largest(self) -> Float[Tensor, "B W"]:
        """The largest logit."""
        return self.replace_committed(self.scattered(self.summary.largest), 0.0)

    @cached_property
    def odds_against(self) -> Float[Tensor, "B W"]:
        """(1 - p) / p of the most likely token."""
        return self.replace_committed(self.scattered(self.summary.odds_against), 0.0)

    @property
    def entropy(self) -> Float[Tensor, "B W"]:
        """Entropy in nats."""
        return self.replace_committed(self.scattered(self.summary.entropy), 0.0)

    def top_k(self, n: int) -> TopK:
        """Returns the n largest logits, descending, and their tokens."""
        logits, tokens = (self.scattered(part) for part in self.summary.top_k(n))
        only = torch.where(torch.arange(n, device=logits.device) > 0, -torch.inf, 0.0)
        return TopK(
            self.replace_committed(logits, only.to(logits.dtype)),
            self.replace_committed(tokens, self.tokens[..., None]),
        )

    def probability(self, tokens: Int[Tensor, "B W"]) -> Float[Tensor, "B W"]:
        """Returns the probability of the given token at each position."""
        logits = self._look_up(tokens[..., None]).squeeze(-1)
        return (logits - self.largest).exp() / (1.0 + self.odds_against)

    def scattered(self, part: Shaped[Tensor, "B N *rest"]) -> Shaped[Tensor, "B W *rest"]:
        """Scatters values of the computed columns to the window; the other columns get 0."""
        offsets = self.summary.offsets
        if offsets is None:
            return part
        index = offsets.view(*offsets.shape, *[1] * (part.ndim - 2)).expand_as(part)
        return part.new_zeros(*self.tokens.shape, *part.shape[2:]).scatter_(1, index, part)

    def replace_committed(
        self, found: Shaped[Tensor, "B W *rest"], otherwise: Tensor | float
    ) -> Shaped[Tensor, "B W *rest"]:
        """Replaces values at committed positions by others, unless `reads_committed`."""
        if self.reads_committed:
            return found
        masked = self.masked.view(*self.masked.shape, *[1] * (found.ndim - 2))
        return torch.where(masked, found, otherwise)

    def _look_up(self, tokens: Int[Tensor, "B W R"]) -> Float[Tensor, "B W R"]:
        """Returns the logits of some tokens of each position."""
        offsets = self.summary.offsets
        looked_up = tokens
        if offsets is not None:
            looked_up = tokens.gather(1, offsets[..., None].expand(-1, -1, tokens.shape[2]))
        logits = self.scattered(widen(self.summary.logits.gather(-1, looked_up)))
        if self.reads_committed:
            return logits
        only = torch.zeros_like(logits).masked_fill(tokens != self.tokens[..., None], -torch.inf)
        return self.replace_committed(logits, only)
