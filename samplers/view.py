"""What a sampler sees of the canvas."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, TypeAlias

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from samplers.logits import noise, statistics
from samplers.logits.bias import LogitBias
from samplers.logits.statistics import TopK
from samplers.logits.summary import Summary

Scope: TypeAlias = Literal["block", "suffix", "answer"]
"""Which positions a sampler must see: the open block, from there to the end, or all."""

Order: TypeAlias = Literal["confidence", "random", "margin", "entropy"]
"""Which positions come first: of highest confidence or margin, lowest entropy, or any."""

# Vocabulary ids draw token noise; this key, which no vocabulary reaches, draws orders.
_ORDER_STREAM = -1


@dataclass(frozen=True)
class View:
    """What a sampler sees: one window of the answer, all rows, at one step.

    Statistics are computed on first use and kept, in float32 or better, without a copy of the
    logits. Confidence, margin and entropy always describe the distribution at temperature 1.
    Unless `reads_committed`, a committed token is certain, whatever the model would say.

    Attributes:
        tokens: The window's tokens; [MASK] where `masked`.
        logits: Raw logits at temperature 1, in the model's dtype. [MASK] and ids that must never be
            emitted are at -inf. Without `bonus`, and of the `asked` columns only: samplers read the
            statistics, or `all_logits`.
        masked: Still [MASK].
        eligible: Masked, in the open block, in a running row, logits known.
        start: Answer position of the window's first column.
        gen_length: Answer length in tokens.
        committed: Answer positions that hold a token, in and outside the window. `None` counts the
            window's.
        temperature: Gumbel-max temperature of the proposals, 0 is greedy.
        keys: One noise key a row, whatever its progress; see `samplers.logits.noise.row_keys`.
            `None` is key 0.
        lead: Position at which the row's own answer begins, negative if some of it lies before
            position 0. `None`: 0 in every row.
        block: Columns of the window that are the open block.
        asked: Which columns of the window the logits are of, each at most once, among them all that
            are masked; `None`: all, in order.
        reads_committed: Whether statistics at committed positions are the model's, as
            `Sampler.reads_committed` asks for; then the logits are of all columns.
        leave_one_out: Probability of the token in place when the model cannot see it; 0 where
            masked. Only for samplers that ask for it.
        logit_bias: What a wrapper adds to a few logits of each position, see `with_logit_bias`.
    """

    tokens: Int[Tensor, "B W"]
    logits: Float[Tensor, "B N V"]
    masked: Bool[Tensor, "B W"]
    eligible: Bool[Tensor, "B W"]
    start: int
    gen_length: int
    committed: Int[Tensor, " B"] | None = None
    temperature: float = 0.0
    keys: Int[Tensor, " B"] | None = None
    lead: Int[Tensor, " B"] | None = None
    block: slice = field(default_factory=lambda: slice(None))
    asked: Int[Tensor, "B N"] | None = None
    reads_committed: bool = True
    leave_one_out: Float[Tensor, "B W"] | None = None
    logit_bias: LogitBias | None = None

    @cached_property
    def proposal(self) -> Int[Tensor, "B W"]:
        """The token each position would commit: the argmax, or a draw at a temperature above 0."""
        if self.temperature == 0.0:
            return self.most_likely
        keys = self._position_keys
        keys = keys if self.asked is None else keys.gather(1, self.asked)
        drawn = statistics.draw(self._raised_logits, self.temperature, keys)
        return self._certain(self._spread(drawn), self.tokens)

    @cached_property
    def most_likely(self) -> Int[Tensor, "B W"]:
        """The token of the highest logit, the lowest id of ties."""
        logit_bias = self.logit_bias
        found = (
            self._spread(self._plain.most_likely)
            if logit_bias is None
            else logit_bias.most_likely()
        )
        return self._certain(found, self.tokens)

    @cached_property
    def confidence(self) -> Float[Tensor, "B W"]:
        """Probability of the proposal."""
        return self.probability(self.proposal)

    @cached_property
    def margin(self) -> Float[Tensor, "B W"]:
        """Probability of the most likely token less that of the second."""
        top = (self.top_k(2).logits - self.log_normaliser[..., None]).exp()
        return top[..., 0] - top[..., 1]

    @cached_property
    def entropy(self) -> Float[Tensor, "B W"]:
        """Entropy in nats."""
        plain = self._spread(self._plain.entropy)
        return self._certain(
            plain if self.logit_bias is None else self.logit_bias.entropy(plain), 0.0
        )

    @cached_property
    def log_normaliser(self) -> Float[Tensor, "B W"]:
        """Logarithm of the sum of the exponentials of the logits."""
        if self.logit_bias is None:
            found = self._spread(self._plain.log_normaliser)
        else:
            found = self.logit_bias.log_normaliser + self.logit_bias.growth()
        return self._certain(found, 0.0)

    @cached_property
    def all_logits(self) -> Float[Tensor, "B W V"]:
        """The logits that the statistics describe: `logits`, or a copy if these are others.

        Only for those who compare whole distributions.
        """
        if self.reads_committed:
            return self._raised_logits
        spread = self._spread(self._raised_logits)
        only = torch.full_like(spread, -torch.inf).scatter_(-1, self.tokens[..., None], 0.0)
        return self._certain(spread, only)

    @cached_property
    def progress(self) -> Float[Tensor, " B"]:
        """Share of the answer that is committed, in [0, 1]."""
        return self._num_committed.double() / self.gen_length

    @property
    def positions(self) -> Int[Tensor, "B W"]:
        """Places of the window's columns in each row's own answer, from 0."""
        positions = self.start + torch.arange(self.tokens.shape[1], device=self.tokens.device)
        first = torch.zeros_like(self.tokens[:, 0]) if self.lead is None else self.lead
        return positions - first[:, None]

    def top_k(self, n: int, columns: Int[Tensor, "B n"] | None = None) -> TopK:
        """Returns the n largest logits, descending, and their tokens.

        Args:
            n: How many.
            columns: Of which columns of the window; `None`: of all.
        """
        if columns is not None:
            return self._part(columns).top_k(n)
        plain = TopK(*(self._spread(part) for part in self._plain.top_k(n)))
        logits, tokens = plain if self.logit_bias is None else self.logit_bias.top_k(plain)
        only = torch.where(torch.arange(n, device=logits.device) > 0, -torch.inf, 0.0)
        return TopK(
            self._certain(logits, only.to(logits.dtype)),
            self._certain(tokens, self.tokens[..., None]),
        )

    def probability(self, tokens: Int[Tensor, "B W"]) -> Float[Tensor, "B W"]:
        """Returns the probability of the given token at each position."""
        logits = self._look_up(tokens[..., None]).squeeze(-1)
        if self.logit_bias is not None:
            logits = logits + self.logit_bias.value_of(tokens)
        return (logits - self.log_normaliser).exp()

    def scores(self, order: Order) -> Float[Tensor, "B W"]:
        """Returns a number a position whose descending order is the given one."""
        match order:
            case "confidence":
                return self.confidence
            case "margin":
                return self.margin
            case "entropy":
                return -self.entropy
            case "random":
                return self.uniform()

    def uniform(self) -> Float[Tensor, "B W"]:
        """Returns a number in (0, 1) a position, keyed as token noise is, for random orders."""
        return noise.uniform(self._position_keys + _ORDER_STREAM)

    def with_logits(self, logits: Float[Tensor, "B W V"]) -> "View":
        """Returns a view whose statistics follow other logits."""
        return replace(self, logits=logits, asked=None, logit_bias=None)

    def with_logit_bias(
        self, tokens: Int[Tensor, "B W R"], values: Float[Tensor, "B W R"]
    ) -> "View":
        """Returns a view whose statistics follow logits raised at a few tokens of each position.

        No copy of the logits is made; a second bonus costs one.

        Args:
            tokens: Each at most once a position, the most likely one among them; -1 is an unused
                slot.
            values: What is added to their logits, at least 0; 0 in unused slots.
        """
        plain = self if self.logit_bias is None else self.with_logits(self.all_logits)
        logits = plain._look_up(tokens.clamp(min=0)).masked_fill(tokens < 0, -torch.inf)
        logit_bias = LogitBias(tokens, values, logits, self.log_normaliser)
        return replace(plain, logit_bias=logit_bias).knowing(plain)

    def knowing(self, other: "View") -> "View":
        """Takes over what another view of the very same logits has computed of them."""
        if self.logits is other.logits:
            vars(self)["_plain"] = other._plain
        return self

    def within(self, scope: Scope) -> "View":
        """Returns the part of the window that a sampler of some scope asks for."""
        first, end, _ = self.block.indices(self.tokens.shape[1])
        shown = slice(
            0 if scope == "answer" else first,
            end if scope == "block" else self.tokens.shape[1],
        )
        if shown == slice(0, self.tokens.shape[1]):
            return self
        return replace(
            self._part(shown),
            start=self.start + shown.start,
            block=slice(first - shown.start, end - shown.start),
        )

    def take(self, rows: Int[Tensor, " N"]) -> "View":
        """Returns the view of some rows."""
        return replace(
            self,
            tokens=self.tokens[rows],
            logits=self.logits[rows],
            masked=self.masked[rows],
            eligible=self.eligible[rows],
            committed=None if self.committed is None else self.committed[rows],
            keys=None if self.keys is None else self.keys[rows],
            lead=None if self.lead is None else self.lead[rows],
            asked=None if self.asked is None else self.asked[rows],
            leave_one_out=None if self.leave_one_out is None else self.leave_one_out[rows],
            logit_bias=None if self.logit_bias is None else self.logit_bias.at(rows),
        )

    def _part(self, columns: slice | Int[Tensor, "B n"]) -> "View":
        """Returns the view of some columns; what is known of whole rows stays."""
        if self.asked is not None:
            return self.with_logits(self.all_logits)._part(columns)
        rows: Tensor | slice = slice(None)
        if not isinstance(columns, slice):
            rows = torch.arange(len(columns), device=columns.device)[:, None]
        return replace(
            self,
            tokens=self.tokens[rows, columns],
            logits=self.logits[rows, columns],
            masked=self.masked[rows, columns],
            eligible=self.eligible[rows, columns],
            committed=self._num_committed,
            leave_one_out=None if self.leave_one_out is None else self.leave_one_out[rows, columns],
            logit_bias=None if self.logit_bias is None else self.logit_bias.at(rows, columns),
        )

    @cached_property
    def _plain(self) -> Summary:
        """Statistics of `logits`, without the bonus."""
        return Summary(self.logits)

    @property
    def _raised_logits(self) -> Float[Tensor, "B N V"]:
        if self.logit_bias is None or self.asked is None:
            return self.logits if self.logit_bias is None else self.logit_bias.added_to(self.logits)
        rows = torch.arange(len(self.asked), device=self.asked.device)[:, None]
        return self.logit_bias.at(rows, self.asked).added_to(self.logits)

    def _look_up(self, tokens: Int[Tensor, "B W R"]) -> Float[Tensor, "B W R"]:
        """Returns the plain logits of some tokens of each position."""
        asked = tokens
        if self.asked is not None:
            asked = tokens.gather(1, self.asked[..., None].expand(-1, -1, tokens.shape[2]))
        found = self._spread(statistics.widen(self.logits.gather(-1, asked)))
        if self.reads_committed:
            return found
        only = torch.zeros_like(found).masked_fill(tokens != self.tokens[..., None], -torch.inf)
        return self._certain(found, only)

    def _spread(self, part: Shaped[Tensor, "B N *rest"]) -> Shaped[Tensor, "B W *rest"]:
        """Puts what is found of the asked columns where they are, zeros elsewhere."""
        if self.asked is None:
            return part
        index = self.asked.view(*self.asked.shape, *[1] * (part.ndim - 2)).expand_as(part)
        return part.new_zeros(*self.tokens.shape, *part.shape[2:]).scatter_(1, index, part)

    def _certain(
        self, found: Shaped[Tensor, "B W *rest"], otherwise: Tensor | float
    ) -> Shaped[Tensor, "B W *rest"]:
        """Replaces what is found at committed positions, unless that is wanted."""
        if self.reads_committed:
            return found
        masked = self.masked.view(*self.masked.shape, *[1] * (found.ndim - 2))
        return torch.where(masked, found, otherwise)

    @property
    def _position_keys(self) -> Int[Tensor, "B W"]:
        keys = torch.zeros_like(self.tokens[:, 0]) if self.keys is None else self.keys
        return noise.position_keys(keys, self._num_committed, self.positions)

    @property
    def _num_committed(self) -> Int[Tensor, " B"]:
        return (~self.masked).sum(-1) if self.committed is None else self.committed
