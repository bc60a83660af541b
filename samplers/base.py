"""The contract between the engine and a sampler: what it sees, what it decides, what it is."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from samplers import noise, statistics
from samplers.statistics import TopK

State: TypeAlias = Tensor | tuple["State", ...] | None
"""What a sampler carries from step to step of one block: tensors with the batch axis first."""

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
            emitted are at -inf.
        masked: Still [MASK].
        eligible: Masked, in the open block, in a running row, logits known.
        start: Answer position of the window's first column.
        gen_length: Answer length in tokens.
        committed: Answer positions that hold a token, in and outside the window. `None` counts the
            window's.
        temperature: Gumbel-max temperature of the proposals, 0 is greedy.
        keys: One noise key a row; see `samplers.noise.row_keys`. `None` is key 0.
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

    @cached_property
    def proposal(self) -> Int[Tensor, "B W"]:
        """The token each position would commit: the argmax, or a draw at a temperature above 0."""
        if self.temperature == 0.0:
            return self.logits.argmax(-1)
        return statistics.draw(self.logits, self.temperature, self._position_keys)

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
        return statistics.entropy(self.logits)

    @cached_property
    def log_normaliser(self) -> Float[Tensor, "B W"]:
        """log sum exp of the logits."""
        return statistics.log_normaliser(self.logits)

    @cached_property
    def progress(self) -> Float[Tensor, " B"]:
        """Share of the answer that is committed, in [0, 1]."""
        committed = (~self.masked).sum(-1) if self.committed is None else self.committed
        return committed.double() / self.gen_length

    def top_k(self, n: int) -> TopK:
        """Returns the n largest logits of each position, descending, and their tokens."""
        return statistics.top_k(self.logits, n)

    def probability(self, tokens: Int[Tensor, "B W"]) -> Float[Tensor, "B W"]:
        """Returns the probability of the given token at each position."""
        return (statistics.gather(self.logits, tokens) - self.log_normaliser).exp()

    def uniform(self) -> Float[Tensor, "B W"]:
        """Returns one number in (0, 1) a position, keyed as the token noise is, for random orders."""
        return noise.uniform(self._position_keys + _ORDER_STREAM)

    def with_logits(self, logits: Float[Tensor, "B W V"]) -> "View":
        """Returns a view whose statistics follow other logits."""
        return replace(self, logits=logits)

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
        )

    @property
    def _position_keys(self) -> Int[Tensor, "B W"]:
        positions = self.start + torch.arange(self.tokens.shape[1], device=self.tokens.device)
        keys = torch.zeros_like(self.tokens[:, 0]) if self.keys is None else self.keys
        return noise.mix(keys[:, None] ^ noise.mix(positions))


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
    def scope(self) -> Literal["block", "suffix"]:
        """Which positions it must see: the open block, or everything from there to the end."""
        return "block"

    @property
    def shadow(self) -> bool:
        """Whether it wants leave-one-out logits at committed positions."""
        return False

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
        committed, unless `scope` is "suffix", which may commit any masked position in view.
        """


def take_state(state: State, rows: Int[Tensor, " N"]) -> State:
    """Returns some rows of a state."""
    if state is None:
        return None
    if isinstance(state, tuple):
        return tuple(take_state(part, rows) for part in state)
    return state[rows]
