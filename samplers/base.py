"""The contract between the engine and a sampler: what it sees, what it decides, what it is."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from samplers import noise, statistics
from samplers.bonus import Bonus
from samplers.statistics import TopK
from samplers.summary import Summary

# Not recursive in its own name: the run-time type checker of the tests cannot follow that.
State: TypeAlias = Tensor | tuple[Any, ...] | None
"""What a sampler carries from step to step of one block: tensors with the batch axis first, or
tuples of such, nested as needed."""

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

    Attributes:
        tokens: The window's tokens; [MASK] where `masked`.
        logits: Raw logits at temperature 1, in the model's dtype. [MASK] and ids that must never be
            emitted are at -inf. Without `bonus`: samplers read the statistics, or `all_logits`.
        masked: Still [MASK].
        eligible: Masked, in the open block, in a running row, logits known.
        start: Answer position of the window's first column.
        gen_length: Answer length in tokens.
        committed: Answer positions that hold a token, in and outside the window. `None` counts the
            window's.
        temperature: Gumbel-max temperature of the proposals, 0 is greedy.
        keys: One noise key a row; see `samplers.noise.row_keys`. `None` is key 0.
        lead: Position at which the row's own answer begins, negative if some of it lies before
            position 0. `None`: 0 in every row.
        block: Columns of the window that are the open block.
        shadow: Probability of the token in place when the model cannot see it; 0 where masked. Only
            for samplers that ask for it.
        bonus: What a wrapper adds to a few logits of each position, see `with_bonus`.
    """

    tokens: Int[Tensor, "B W"]
    logits: Float[Tensor, "B W V"]
    masked: Bool[Tensor, "B W"]
    eligible: Bool[Tensor, "B W"]
    start: int
    gen_length: int
    committed: Int[Tensor, " B"] | None = None
    temperature: float = 0.0
    keys: Int[Tensor, " B"] | None = None
    lead: Int[Tensor, " B"] | None = None
    block: slice = field(default_factory=lambda: slice(None))
    shadow: Float[Tensor, "B W"] | None = None
    bonus: Bonus | None = None

    @cached_property
    def proposal(self) -> Int[Tensor, "B W"]:
        """The token each position would commit: the argmax, or a draw at a temperature above 0."""
        if self.temperature == 0.0:
            return self.most_likely
        return statistics.draw(self.all_logits, self.temperature, self._position_keys)

    @cached_property
    def most_likely(self) -> Int[Tensor, "B W"]:
        """The token of the highest logit, the lowest id of ties."""
        if self.bonus is not None:
            return self.bonus.most_likely()
        return self._plain.most_likely

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
        plain = self._plain.entropy
        return plain if self.bonus is None else self.bonus.entropy(plain)

    @cached_property
    def log_normaliser(self) -> Float[Tensor, "B W"]:
        """Logarithm of the sum of the exponentials of the logits."""
        if self.bonus is not None:
            return self.bonus.log_normaliser + self.bonus.growth()
        return self._plain.log_normaliser

    @cached_property
    def all_logits(self) -> Float[Tensor, "B W V"]:
        """The logits that the statistics describe: `logits`, or a raised copy where a bonus is.

        Only for samplers that compare whole distributions.
        """
        return self.logits if self.bonus is None else self.bonus.added_to(self.logits)

    @cached_property
    def progress(self) -> Float[Tensor, " B"]:
        """Share of the answer that is committed, in [0, 1]."""
        committed = (~self.masked).sum(-1) if self.committed is None else self.committed
        return committed.double() / self.gen_length

    def top_k(self, n: int, columns: Int[Tensor, "B n"] | None = None) -> TopK:
        """Returns the n largest logits, descending, and their tokens.

        Args:
            n: How many.
            columns: Of which columns of the window; `None`: of all.
        """
        if columns is None:
            plain, bonus = self._plain.top_k(n), self.bonus
        else:
            rows = torch.arange(len(columns), device=columns.device)[:, None]
            plain = statistics.top_k(self.logits[rows, columns], n)
            bonus = None if self.bonus is None else self.bonus.at(rows, columns)
        return plain if bonus is None else bonus.top_k(plain)

    def probability(self, tokens: Int[Tensor, "B W"]) -> Float[Tensor, "B W"]:
        """Returns the probability of the given token at each position."""
        logits = statistics.gather(self.logits, tokens)
        if self.bonus is not None:
            logits = logits + self.bonus.value_of(tokens)
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
        return replace(self, logits=logits, bonus=None)

    def with_bonus(self, tokens: Int[Tensor, "B W R"], values: Float[Tensor, "B W R"]) -> "View":
        """Returns a view whose statistics follow logits raised at a few tokens of each position.

        No copy of the logits is made; a second bonus costs one.

        Args:
            tokens: Each at most once a position, the most likely one among them; -1 is an unused
                slot.
            values: What is added to their logits, at least 0; 0 in unused slots.
        """
        plain = self if self.bonus is None else self.with_logits(self.all_logits)
        bonus = Bonus.of(tokens, values, plain.logits, self.log_normaliser)
        return replace(plain, bonus=bonus).knowing(plain)

    def knowing(self, other: "View") -> "View":
        """Takes over what another view of the very same logits has computed of them."""
        if self.logits is other.logits:
            vars(self)["_plain"] = other._plain
        return self

    def within(self, scope: Scope) -> "View":
        """Returns the part of the window that a sampler of some scope asks for."""
        if scope == "answer":
            return self
        first, end, _ = self.block.indices(self.tokens.shape[1])
        columns = slice(first, end if scope == "block" else self.tokens.shape[1])
        return replace(
            self,
            tokens=self.tokens[:, columns],
            logits=self.logits[:, columns],
            masked=self.masked[:, columns],
            eligible=self.eligible[:, columns],
            start=self.start + first,
            committed=(~self.masked).sum(-1) if self.committed is None else self.committed,
            block=slice(0, end - first),
            shadow=None if self.shadow is None else self.shadow[:, columns],
            bonus=None if self.bonus is None else self.bonus.at(slice(None), columns),
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
            shadow=None if self.shadow is None else self.shadow[rows],
            bonus=None if self.bonus is None else self.bonus.at(rows),
        )

    @cached_property
    def _plain(self) -> Summary:
        """Statistics of `logits`, without the bonus."""
        return Summary(self.logits)

    @property
    def positions(self) -> Int[Tensor, "B W"]:
        """Places of the window's columns in each row's own answer, from 0."""
        positions = self.start + torch.arange(self.tokens.shape[1], device=self.tokens.device)
        first = torch.zeros_like(self.tokens[:, 0]) if self.lead is None else self.lead
        return positions - first[:, None]

    @property
    def _position_keys(self) -> Int[Tensor, "B W"]:
        keys = torch.zeros_like(self.tokens[:, 0]) if self.keys is None else self.keys
        return noise.mix(keys[:, None] ^ noise.mix(self.positions))


@dataclass(frozen=True)
class Decision:
    """What a sampler decides in one step.

    Attributes:
        commit: Positions to commit.
        tokens: What to write where `commit`; `None`: the view's proposal.
        remask: Committed positions to make [MASK] again; `None`: none.
    """

    commit: Bool[Tensor, "B W"]
    tokens: Int[Tensor, "B W"] | None = None
    remask: Bool[Tensor, "B W"] | None = None


class Sampler(ABC):
    """An unmasking policy: which positions to commit, given one view of the canvas.

    Concrete samplers are frozen dataclasses of hyper-parameters whose repr is their configuration.
    `step` is pure: all memory lives in the state, which starts anew at every block.
    """

    @property
    def scope(self) -> Scope:
        """Which positions it must see: the open block, from there to the end, or all."""
        return "block"

    @property
    def shadow(self) -> bool:
        """Whether it wants leave-one-out probabilities at committed positions."""
        return False

    def check(  # noqa: B027 - most samplers serve any decode
        self, *, model: str, gen_length: int, block_length: int
    ) -> None:
        """Raises ValueError if it cannot serve such a decode; nothing unless overridden."""

    def max_steps(self, num_masks: int) -> int:
        """Returns the number of steps within which a block of so many masks is finished."""
        return num_masks

    def init(self, view: View) -> State:
        """Returns the state at the start of a block; nothing unless overridden."""
        return None

    @abstractmethod
    def step(self, view: View, state: State) -> tuple[Decision, State]:
        """Decides one step.

        Every row with an eligible position commits at least one. Only eligible positions are
        committed, unless `scope` is not "block": then any masked position in view may be.
        """


def check_base(wrapper: str, base: object) -> None:
    """Raises ValueError unless a wrapper was given a sampler that it can wrap."""
    if not isinstance(base, Sampler):
        raise ValueError(
            f"{wrapper} wraps a sampler such as ConfidenceThreshold(0.9), got {base!r}."
        )
    if base.shadow:
        raise ValueError(
            f"{wrapper} wraps a sampler that never re-masks, got {base!r}, which takes back what "
            f"{wrapper} commits. Use {base!r} alone, or wrap another sampler."
        )


def take_state(state: State, rows: Int[Tensor, " N"]) -> State:
    """Returns some rows of a state."""
    if state is None:
        return None
    if isinstance(state, tuple):
        return tuple(take_state(part, rows) for part in state)
    return state[rows]
