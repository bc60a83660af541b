"""The contract between the engine and a sampler."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

from jaxtyping import Bool, Float, Int
from torch import Tensor

from samplers.facts import Fact, PlugIn
from samplers.state import SamplerState
from samplers.view import Scope, View

ASSETS = Path(__file__).parent / "assets"
"""Folder of the files that come with this package, such as a filter of `Learn2PD`."""


@dataclass(frozen=True)
class Decision:
    """A sampler's decision in one step.

    Attributes:
        commit: Positions that get a token: open ones, or with a wider scope than "block" any
            masked position of the view.
        tokens: The tokens to write where `commit`; `None`: the view's proposal.
        settle: Positions that are settled: each of them holds a token, and keeps it from now on.
            `None`: the positions of `commit`. A position that gets a token and is not settled stays
            open, so that a later step may write another token (LLaDA 2.1).
        remask: Positions that hold a token, settled or not, to make [MASK] again and to open;
            `None`: none. A token that `commit` has settled is not in `View.eligible`.

    A sampler that returns `settle` or `remask` must not give `Fact.FINAL_TOKENS`, and must need
    `Fact.LOGITS_OF_COMMITTED` or `Fact.LEAVE_ONE_OUT`.
    """

    commit: Bool[Tensor, "B W"]
    tokens: Int[Tensor, "B W"] | None = None
    settle: Bool[Tensor, "B W"] | None = None
    remask: Bool[Tensor, "B W"] | None = None


class Sampler(PlugIn, ABC, Generic[SamplerState]):
    """A rule for unmasking: which positions to commit, given one view of the canvas.

    Concrete samplers are frozen dataclasses of hyper-parameters whose repr is their configuration.
    `step` is pure: it changes nothing that it is given. A tensor of the view may be the canvas
    itself, or be shared by several views.

    The memory of a rule is its `SamplerState`: None, a tensor, or a NamedTuple of tensors (nested
    as needed), batch axis first. The state starts anew at every block, or, if the schedule opens
    several blocks at once, with the answer; rows that have finished leave the state. Apart from the
    batch axis, the shapes of a state depend on the columns of the view, on `View.block_width` and
    on V alone, because rows that join a batch bring states of their own.

    A rule without a state is a `Sampler[None]`:

        @dataclass(frozen=True)
        class MostConfident(Sampler[None]):
            def step(self, view: View, state: None) -> tuple[Decision, None]:
                return Decision(commit=highest_one(view.confidence, view.eligible)), None
    """

    @property
    def scope(self) -> Scope:
        """The positions that the rule must see: the open block, from there to the end, or all."""
        return "block"

    @property
    def needs(self) -> frozenset[Fact]:
        """The facts that follow from `scope`, `gives`, a state and a belief.

        A rule that overrides `init` has a state and needs `WHOLE_BLOCKS`, since its state may count
        masks or steps from the start of a block. Override `needs` to add a fact, or to leave out a
        fact that the rule does not need: `super().needs - {Fact.WHOLE_BLOCKS}`.

        Without `LOGITS_OF_COMMITTED` the engine may leave out the logits at committed positions,
        and a committed token is certain in every statistic of the view. A rule for uniform-state
        models needs `UNIFORM_STATE` and `STARTS_AS_NOISE` in place of `HAS_MASK`; one that reads
        `View.leave_one_out` needs `LEAVE_ONE_OUT`, which about doubles a forward's columns.
        """
        needs = {Fact.HAS_MASK}
        if self.scope != "block":
            needs |= {Fact.LOGITS_BEHIND_BLOCK, Fact.SAMPLER_DECIDES, Fact.WHOLE_BLOCKS}
        if self.scope == "answer":
            needs |= {Fact.LOGITS_OF_COMMITTED}
        if Fact.FINAL_TOKENS not in self.gives:
            needs |= {Fact.ONE_STEP_A_FORWARD, Fact.WHOLE_BLOCKS}
        if type(self).init is not Sampler.init:
            needs |= {Fact.WHOLE_BLOCKS}
        if type(self).belief is not Sampler.belief:
            needs |= {Fact.STARTS_AS_NOISE}
        return frozenset(needs)

    @property
    def gives(self) -> frozenset[Fact]:
        """`FINAL_TOKENS` unless overridden: a token that the rule commits never changes."""
        return frozenset({Fact.FINAL_TOKENS})

    @property
    def files(self) -> tuple[Path, ...]:
        """Files that the rule reads, such as weights; if one changes, old answers are invalid."""
        return ()

    def check_model(self, *, model_name: str, fingerprint: str) -> None:
        """Raises ValueError if the rule was made for another model; by default it fits any.

        Args:
            model_name: Name of the model; two models may have the same name.
            fingerprint: Equal for equal weights under any name; the model's name if it has no
                fingerprint.
        """

    def check(self, *, model_name: str, gen_length: int, block_length: int) -> None:
        """Raises ValueError if the rule cannot serve such a decode; by default it always can."""

    def max_steps(self, num_masks: int) -> int:
        """Returns the number of steps within which a block of `num_masks` masks is finished."""
        return num_masks

    def init(self, view: View) -> SamplerState:
        """Returns the state at the start of a block: `None` unless overridden."""
        return None  # type: ignore[return-value]  # whoever has a state overrides this

    def belief(self, state: SamplerState) -> Float[Tensor, "B W V"] | None:
        """Returns logits that the model reads in the next forward, as its belief about each token.

        A rule that overrides this needs `STARTS_AS_NOISE`. In a row whose state begins anew, the
        result is not used.

        Args:
            state: The state after the last step.
        """
        return None

    @abstractmethod
    def step(self, view: View, state: SamplerState) -> tuple[Decision, SamplerState]:
        """Decides one step.

        Every row with an eligible position commits, settles or re-masks at least one position, and
        finishes its block within `max_steps`. With the scope "block" only eligible positions may be
        committed, with another scope also any masked position in view.
        """


class RevisingSampler(Sampler[SamplerState]):
    """A sampler that edits, re-masks or redraws tokens by the logits at their positions."""

    @property
    def needs(self) -> frozenset[Fact]:
        return super().needs | {Fact.LOGITS_OF_COMMITTED}

    @property
    def gives(self) -> frozenset[Fact]:
        return frozenset()
