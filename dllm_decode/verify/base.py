"""The verifier's contract, and the one that takes the sampler's word."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dllm_decode.canvas import Block, Canvas
from dllm_decode.models.base import MaskPredictor
from dllm_decode.session import Session
from samplers.base import Decision, Sampler, first_state, next_step
from samplers.view import View

if TYPE_CHECKING:
    # A default for a type variable is Python 3.13's. Type checkers know it without the package.
    from typing_extensions import TypeVar

    Carry = TypeVar("Carry", bound=tuple[Any, ...], default=Any)
else:
    from typing import TypeVar

    Carry = TypeVar("Carry")


class Verifier(ABC, Generic[Carry]):
    """Advances the canvas by one round: the sampler proposes, the verifier disposes.

    What it remembers from round to round of a block is its `Carry`: a NamedTuple of tensors, nested
    as needed, batch axis first. Rows that have finished the block leave it.
    """

    @property
    def looks_ahead(self) -> bool:
        """Whether one forward stands for several steps of the sampler, some of which are undone."""
        return False

    @property
    def asks_sampler(self) -> bool:
        """Whether the sampler decides what is committed, or no one asks it."""
        return True

    @property
    def commits_proposals(self) -> bool:
        """Whether every token that is committed is a proposal of a view that a sampler saw."""
        return False

    @property
    def num_branches(self) -> int:
        """States of one row that one forward looks at, at most."""
        return 1

    @property
    def files(self) -> tuple[Path, ...]:
        """Files that it was read from, such as a target's weights; see `Sampler.files`."""
        return ()

    def check(self, model: MaskPredictor) -> None:
        """Raises ValueError if it cannot verify for this model; nothing unless overridden."""

    def eos_ids(self, model: MaskPredictor) -> tuple[int, ...]:
        """Returns the tokens that end an answer; the first fills what lies behind it."""
        return model.eos_ids

    def blocks(self, canvas: Canvas, block_length: int) -> Iterator[Block]:
        """Splits the answer region into what is decoded together."""
        return canvas.blocks(block_length)

    def max_steps(self, sampler: Sampler, num_masks: int) -> int:
        """Returns the number of steps within which a block of so many masks is finished."""
        return sampler.max_steps(num_masks)

    @abstractmethod
    def advance(
        self,
        session: Session,
        sampler: Sampler,
        canvas: Canvas,
        block: Block,
        carry: Carry | None,
    ) -> tuple[Canvas, Carry]:
        """Runs one round on the rows of `canvas`, all of which have masks left in the block.

        At least one row takes a step, and none takes two: observers see every step of a row. The
        others stay as they are. `session.view` is what the rows that took one were shown.

        Args:
            session: Runs the model.
            sampler: Proposes.
            canvas: The rows of this round.
            block: The open block.
            carry: What the last round on these rows left; `None` at the start of a block.
        """


class SamplerState(NamedTuple):
    """The state of the sampler, which may be None.

    Attributes:
        state: What the sampler returned last.
    """

    state: Any


@dataclass(frozen=True)
class NoVerifier(Verifier[SamplerState]):
    """Commits what the sampler decides: one forward and one step a round."""

    @property
    def commits_proposals(self) -> bool:
        return True

    def advance(
        self,
        session: Session,
        sampler: Sampler,
        canvas: Canvas,
        block: Block,
        carry: SamplerState | None,
    ) -> tuple[Canvas, SamplerState]:
        view = session.forward(canvas, block, sampler, lean=True)
        canvas, view = session.blocks.chosen(canvas, view)
        session.view = view
        state = first_state(sampler, view) if carry is None else carry.state
        decision, state = next_step(sampler, view, state)
        decision = session.blocks.completed(canvas, view, decision, session.block_length)
        check_decision(session, canvas, view, decision, sampler)
        return settle(canvas, view, decision, sampler), SamplerState(state)


def check_decision(
    session: Session, canvas: Canvas, view: View, decision: Decision, sampler: Sampler
) -> None:
    """Checks that a decision keeps the sampler's contract; a breach is reported by `sync`."""
    allowed, commit = _allowed(canvas, view, sampler), decision.commit
    tokens = view.proposal if decision.tokens is None else decision.tokens
    idle = view.eligible.any(-1) & ~(commit & allowed).any(-1)
    session.forbid(idle, sampler, "commit at least one eligible position of every running row")
    where = "masked" if sampler.scope != "block" else "eligible"
    session.forbid(commit & ~allowed, sampler, f"commit {where} positions only")
    session.forbid(commit & (tokens == canvas.mask_id), sampler, "commit tokens other than [MASK]")
    if decision.edit is not None:
        _check_edits(session, canvas, view, decision.edit, tokens, sampler)
    if decision.remask is not None:
        open_again = decision.remask & ~_committed(canvas, view)
        session.forbid(open_again, sampler, "re-mask positions only that a sampler committed")


def _check_edits(
    session: Session,
    canvas: Canvas,
    view: View,
    edit: Bool[Tensor, "B W"],
    tokens: Int[Tensor, "B W"],
    sampler: Sampler,
) -> None:
    """Checks that a sampler edits only if it says so, and only what samplers committed."""
    if not sampler.edits:
        session.forbid(edit, sampler, "say by `edits` that it edits committed tokens")
    duty = "edit positions only that a sampler committed"
    session.forbid(edit & ~_committed(canvas, view), sampler, duty)
    session.forbid(edit & (tokens == canvas.mask_id), sampler, "write tokens other than [MASK]")


def settle(canvas: Canvas, view: View, decision: Decision, sampler: Sampler) -> Canvas:
    """Applies a decision within the engine's guards.

    Only masked positions are committed, outside the open block only by samplers that see the
    suffix; [MASK] is never written; fixed tokens are neither edited nor re-masked. What lies behind
    a committed EOS becomes EOS if the canvas truncates. `check_decision` says when a guard had to
    act.
    """
    tokens = view.proposal if decision.tokens is None else decision.tokens
    commit = decision.commit & _allowed(canvas, view, sampler) & (tokens != canvas.mask_id)
    if decision.edit is not None:
        commit |= decision.edit & _committed(canvas, view) & (tokens != canvas.mask_id)
    settled = canvas.write(view.start, commit, tokens)
    if decision.remask is not None:
        remask = decision.remask & _committed(canvas, view)
        settled = settled.write(view.start, remask, torch.full_like(tokens, canvas.mask_id))
    settled = settled.truncate_at_eos(keeps_committed=sampler.edits)
    return settled if decision.goes_on is None else replace(settled, goes_on=decision.goes_on)


def _allowed(canvas: Canvas, view: View, sampler: Sampler) -> Bool[Tensor, "B W"]:
    """Marks the positions that a sampler may commit."""
    return view.eligible if sampler.scope == "block" else view.masked & canvas.running[:, None]


def _committed(canvas: Canvas, view: View) -> Bool[Tensor, "B W"]:
    """Marks the positions whose tokens a sampler committed, in running rows."""
    fixed = canvas.fixed[:, view.start : view.start + view.masked.shape[1]]
    masked = canvas.masked[:, view.start : view.start + view.masked.shape[1]]
    return ~masked & ~fixed & canvas.running[:, None]
