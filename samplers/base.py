"""The contract between the engine and a sampler."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from samplers.checks import shown
from samplers.facts import Fact, PlugIn
from samplers.state import State, check_state, same_structure
from samplers.view import Scope, View


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


class Sampler(PlugIn, ABC, Generic[State]):
    """A rule for unmasking: which positions to commit, given one view of the canvas.

    Concrete samplers are frozen dataclasses of hyper-parameters whose repr is their configuration.
    `step` is pure: it changes nothing that it is given. A tensor of the view may be the canvas
    itself, or be shared by several views.

    The memory of a rule is its `State`: None, a tensor, or a NamedTuple of tensors (nested as
    needed), batch axis first. The state starts anew at every block, or, if the schedule opens
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
            needs |= {Fact.READS_BELIEF, Fact.STARTS_AS_NOISE}
        return frozenset(needs)

    @property
    def gives(self) -> frozenset[Fact]:
        """`FINAL_TOKENS` unless overridden: a token that the rule commits never changes."""
        return frozenset({Fact.FINAL_TOKENS})

    @property
    def files(self) -> tuple[Path, ...]:
        """Files that the rule reads, such as weights; if one changes, old answers are invalid."""
        return ()

    def check_model(self, *, name: str, fingerprint: str) -> None:
        """Raises ValueError if the rule was made for another model; by default it fits any.

        Args:
            name: Name of the model; two models may have the same name.
            fingerprint: Equal for equal weights under any name; the model's name if it has no
                fingerprint.
        """

    def check(self, *, model: str, gen_length: int, block_length: int) -> None:
        """Raises ValueError if the rule cannot serve such a decode; by default it always can."""

    def max_steps(self, num_masks: int) -> int:
        """Returns the number of steps within which a block of `num_masks` masks is finished."""
        return num_masks

    def init(self, view: View) -> State:
        """Returns the state at the start of a block: `None` unless overridden."""
        return None  # type: ignore[return-value]  # whoever has a state overrides this

    def belief(self, state: State) -> Float[Tensor, "B W V"] | None:
        """Returns logits that the model reads in the next forward, as its belief about each token.

        A rule that overrides this needs `READS_BELIEF` and `STARTS_AS_NOISE`. In a row whose state
        begins anew, the result is not used.

        Args:
            state: The state after the last step.
        """
        return None

    @abstractmethod
    def step(self, view: View, state: State) -> tuple[Decision, State]:
        """Decides one step.

        Every row with an eligible position commits, settles or re-masks at least one position, and
        finishes its block within `max_steps`. With the scope "block" only eligible positions may be
        committed, with another scope also any masked position in view.
        """


class RevisingSampler(Sampler[State]):
    """A sampler that edits, re-masks or redraws tokens by the logits at their positions."""

    @property
    def needs(self) -> frozenset[Fact]:
        return super().needs | {Fact.LOGITS_OF_COMMITTED}

    @property
    def gives(self) -> frozenset[Fact]:
        return frozenset()


def first_state(sampler: Sampler[State], view: View) -> State:
    """Returns a sampler's state at the start of a block.

    Raises:
        RuntimeError: If the state is of a kind whose rows cannot be taken.
    """
    state = sampler.init(view)
    check_state(state, len(view.tokens), owner=sampler)
    return state


def next_step(sampler: Sampler[State], view: View, state: State) -> tuple[Decision, State]:
    """Lets a sampler decide one step.

    Raises:
        RuntimeError: If the sampler returns no decision of the view's shape, or a state whose rows
            cannot be taken, or of another kind than the state before; or if it writes into the
            view's masks.
    """
    num_writes = _num_writes(view)
    returned: object = sampler.step(view, state)
    if _num_writes(view) != num_writes:
        raise RuntimeError(
            f"step of {sampler!r} must not write into view.masked or view.eligible, but did. "
            "Change a copy: `wanted = view.eligible & ...`, not `view.eligible &= ...`."
        )
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise RuntimeError(
            f"step of {sampler!r} must return the pair (Decision, state), got a "
            f"{type(returned).__name__}. Without a state, return (Decision(...), None)."
        )
    decision, new_state = returned
    require_decision(f"step of {sampler!r}", decision, view)
    _require_facts(sampler, decision)
    check_state(new_state, len(view.tokens), owner=sampler)
    if not same_structure(state, new_state):
        raise RuntimeError(
            f"The state of {sampler!r} must keep its kind, shapes and dtypes from step to step, "
            f"got {_described(new_state)} after {_described(state)}. Return from init a state like "
            "those of step, filled with zeros if nothing is known yet."
        )
    return decision, new_state


def _num_writes(view: View) -> list[int]:
    """Returns how often torch saw a write into each mask of a view, where torch counts writes."""
    # Torch counts no writes into tensors that were made in inference mode.
    return [mask._version for mask in (view.masked, view.eligible) if not mask.is_inference()]


def require_max_steps(limit: object, *, owner: object) -> int:
    """Returns a number of steps; raises RuntimeError unless `max_steps` returned one."""
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise RuntimeError(
            f"max_steps of {owner!r} must return a number of steps, got {shown(limit)}."
        )
    return limit


def require_decision(source: str, decision: object, view: View) -> None:
    """Raises RuntimeError unless a decision's tensors are of the view's shape and of their kind.

    Args:
        source: The plug-in that decides, for the message.
        decision: The decision.
        view: The view that was decided.
    """
    if not isinstance(decision, Decision):
        raise RuntimeError(f"{source} must return a Decision, got a {type(decision).__name__}.")
    shape = tuple(view.tokens.shape)
    masks = (
        ("commit", decision.commit),
        ("settle", decision.settle),
        ("remask", decision.remask),
    )
    for name, mask in masks:
        _require_tensor(source, name, mask, "bool", shape, optional=name != "commit")
    _require_tensor(source, "tokens", decision.tokens, "integer", shape)


def _require_facts(sampler: Sampler, decision: Decision) -> None:
    """Raises RuntimeError if a decision contradicts what its sampler needs and gives."""
    if decision.settle is None and decision.remask is None:
        return
    if Fact.FINAL_TOKENS in sampler.gives:
        raise RuntimeError(
            f"{sampler!r} gives FINAL_TOKENS, so its step must return neither settle nor remask. "
            "Derive it from RevisingSampler, or override `gives` without Fact.FINAL_TOKENS."
        )
    if not sampler.needs & {Fact.LOGITS_OF_COMMITTED, Fact.LEAVE_ONE_OUT}:
        raise RuntimeError(
            f"{sampler!r} returns settle or remask, so it must need LOGITS_OF_COMMITTED or "
            "LEAVE_ONE_OUT. Override `needs`: super().needs | {Fact.LOGITS_OF_COMMITTED}."
        )


def _require_tensor(
    source: str,
    name: str,
    value: object,
    wanted: Literal["bool", "integer"],
    shape: tuple[int, ...],
    *,
    optional: bool = True,
) -> None:
    if value is None and optional:
        return
    if isinstance(value, Tensor):
        is_integer = not (value.is_floating_point() or value.is_complex())
        kind = "bool" if value.dtype is torch.bool else "integer" if is_integer else "other"
        if kind == wanted and tuple(value.shape) == shape:
            return
    # A tensor is described by its shape, because showing its numbers would wait for the device.
    got = _described(value) if isinstance(value, Tensor) else shown(value)
    raise RuntimeError(
        f"{source} must return {name} of kind {wanted} and shape {shape}, got {got}."
    )


def _described(state: object) -> str:
    """Names the kind of a state, with the shapes and dtypes of its tensors."""
    if isinstance(state, Tensor):
        return f"{state.dtype} {tuple(state.shape)}"
    if isinstance(state, tuple):
        return f"{type(state).__name__}({', '.join(_described(part) for part in state)})"
    return "None"
