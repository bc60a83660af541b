"""Statistics of all columns of a window, from those of the columns whose logits were computed."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from samplers.logits.bias import LogitBias
from samplers.logits.statistics import TopK, widen
from samplers.logits.summary import Summary


@dataclass(frozen=True, eq=False)
class WindowLogits:
    """Logits of a window, with a bias if there is one; committed tokens may be certain.

    Attributes:
        tokens: Tokens of the window, as `View.tokens`.
        computed: Logits of some columns or all.
        masked: Positions whose logits are the model's.
        reads_committed: True if committed positions have the model's logits, too.
        bias: `View.logit_bias`.
    """

    tokens: Int[Tensor, "B W"]
    computed: Summary
    masked: Bool[Tensor, "B W"]
    reads_committed: bool
    bias: LogitBias | None

    @cached_property
    def all(self) -> Float[Tensor, "B W V"]:
        """See `View.logits`."""
        if self.reads_committed:
            return self.raised
        logits = self.scattered(self.raised)
        only = torch.full_like(logits, -torch.inf).scatter_(-1, self.tokens[..., None], 0.0)
        return self.replace_committed(logits, only)

    @property
    def raised(self) -> Float[Tensor, "B N V"]:
        """The computed logits, raised by the bias."""
        logits, columns = self.computed.logits, self.computed.columns
        if self.bias is None:
            return logits
        if columns is None:
            return self.bias.added_to(logits)
        rows = torch.arange(len(columns), device=columns.device)[:, None]
        return self.bias.at(rows, columns).added_to(logits)

    @property
    def most_likely(self) -> Int[Tensor, "B W"]:
        """The token of the highest logit, the lowest id of ties."""
        plain, bias = self.computed, self.bias
        tokens = self.scattered(plain.most_likely) if bias is None else bias.most_likely()
        return self.replace_committed(tokens, self.tokens)

    @cached_property
    def largest(self) -> Float[Tensor, "B W"]:
        """The largest logit."""
        plain, bias = self.computed, self.bias
        largest = self.scattered(plain.largest) if bias is None else bias.largest()
        return self.replace_committed(largest, 0.0)

    @cached_property
    def odds_against(self) -> Float[Tensor, "B W"]:
        """(1 - p) / p of the most likely token."""
        plain, bias = self.computed, self.bias
        odds = self.scattered(plain.odds_against) if bias is None else bias.odds_against()
        return self.replace_committed(odds, 0.0)

    @property
    def entropy(self) -> Float[Tensor, "B W"]:
        """Entropy in nats."""
        plain = self.scattered(self.computed.entropy)
        return self.replace_committed(plain if self.bias is None else self.bias.entropy(plain), 0.0)

    def top_k(self, n: int) -> TopK:
        """Returns the n largest logits, descending, and their tokens."""
        plain = TopK(*(self.scattered(part) for part in self.computed.top_k(n)))
        logits, tokens = plain if self.bias is None else self.bias.top_k(plain)
        only = torch.where(torch.arange(n, device=logits.device) > 0, -torch.inf, 0.0)
        return TopK(
            self.replace_committed(logits, only.to(logits.dtype)),
            self.replace_committed(tokens, self.tokens[..., None]),
        )

    def probability(self, tokens: Int[Tensor, "B W"]) -> Float[Tensor, "B W"]:
        """Returns the probability of the given token at each position."""
        logits = self._look_up(tokens[..., None]).squeeze(-1)
        if self.bias is not None:
            logits = logits + self.bias.value_of(tokens)
        return (logits - self.largest).exp() / (1.0 + self.odds_against)

    def with_bias(
        self, tokens: Int[Tensor, "B W R"], values: Float[Tensor, "B W R"]
    ) -> "WindowLogits":
        """Returns logits raised at a few tokens; an earlier bias is added to a copy first."""
        plain = self if self.bias is None else replace(self, computed=Summary(self.all), bias=None)
        logits = plain._look_up(tokens.clamp(min=0)).masked_fill(tokens < 0, -torch.inf)
        return replace(
            plain, bias=LogitBias(tokens, values, logits, plain.largest, plain.odds_against)
        )

    def scattered(self, part: Shaped[Tensor, "B N *rest"]) -> Shaped[Tensor, "B W *rest"]:
        """Scatters values of the computed columns to the window; the other columns get 0."""
        columns = self.computed.columns
        if columns is None:
            return part
        index = columns.view(*columns.shape, *[1] * (part.ndim - 2)).expand_as(part)
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
        """Returns the logits of some tokens of each position, without the bias."""
        columns, looked_up = self.computed.columns, tokens
        if columns is not None:
            looked_up = tokens.gather(1, columns[..., None].expand(-1, -1, tokens.shape[2]))
        logits = self.scattered(widen(self.computed.logits.gather(-1, looked_up)))
        if self.reads_committed:
            return logits
        only = torch.zeros_like(logits).masked_fill(tokens != self.tokens[..., None], -torch.inf)
        return self.replace_committed(logits, only)
