"""The contract between the engine and a sampler: what it sees, what it decides, what it is."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, TypeAlias

from jaxtyping import Bool, Int
from torch import Tensor

from samplers.view import Scope, View

# Not recursive in its own name: the run-time type checker of the tests cannot follow that.
State: TypeAlias = Tensor | tuple[Any, ...] | None
"""What a sampler carries from step to step of one block: tensors with the batch axis first, or
tuples of such, nested as needed."""


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
    def leave_one_out(self) -> bool:
        """Whether it wants leave-one-out probabilities at committed positions."""
        return False

    @property
    def reads_committed(self) -> bool:
        """Whether it reads statistics at committed positions; else the token there is certain."""
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
    if base.leave_one_out:
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
