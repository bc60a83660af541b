"""The verifier's contract, and the one that takes the sampler's word."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

import torch

from dllm_decode.canvas import Block, Canvas
from dllm_decode.models.base import MaskPredictor
from dllm_decode.session import Session
from samplers.base import Decision, Sampler, first_state, next_step
from samplers.logits.statistics import highest_one
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
    def num_branches(self) -> int:
        """States of one row that one forward looks at, at most."""
        return 1

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

    def advance(
        self,
        session: Session,
        sampler: Sampler,
        canvas: Canvas,
        block: Block,
        carry: SamplerState | None,
    ) -> tuple[Canvas, SamplerState]:
        view = session.forward(canvas, block, sampler, lean=True)
        state = first_state(sampler, view) if carry is None else carry.state
        decision, state = next_step(sampler, view, state)
        return settle(canvas, view, decision, sampler), SamplerState(state)


def settle(canvas: Canvas, view: View, decision: Decision, sampler: Sampler) -> Canvas:
    """Applies a decision within the engine's guards.

    Only masked positions are committed, outside the open block only by samplers that see the
    suffix; [MASK] is never written; a running row that would commit nothing commits its most
    confident eligible position; fixed tokens are never re-masked. What lies behind a committed EOS
    is filled if the canvas truncates.
    """
    allowed = view.eligible if sampler.scope == "block" else view.masked & canvas.running[:, None]
    tokens = view.proposal if decision.tokens is None else decision.tokens
    commit = decision.commit & allowed & (tokens != canvas.mask_id)
    stuck = ~commit.any(-1, keepdim=True)
    # Asking whether any row is stuck would make the host wait for an accelerator; deciding it for
    # nothing costs one more look at scores that nearly every sampler has computed.
    if stuck.device.type != "cpu" or stuck.any():
        forced = stuck & highest_one(view.confidence, view.eligible)
        commit, tokens = commit | forced, torch.where(forced, view.proposal, tokens)
    settled = canvas.write(view.start, commit, tokens)
    if decision.remask is None:
        return settled.truncate_at_eos()
    fixed = canvas.fixed[:, view.start : view.start + commit.shape[1]]
    remask = decision.remask & ~view.masked & ~fixed & canvas.running[:, None]
    settled = settled.write(view.start, remask, torch.full_like(tokens, canvas.mask_id))
    return settled.truncate_at_eos()
