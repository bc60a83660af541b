"""The verifier's contract, and the one that takes the sampler's word."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from dllm_decode.canvas import Block, Canvas
from dllm_decode.session import Session
from samplers.base import Decision, Sampler, State, View
from samplers.statistics import highest_one


class Verifier(ABC):
    """Advances the canvas by one round: the sampler proposes, the verifier disposes."""

    @abstractmethod
    def advance(
        self, session: Session, sampler: Sampler, canvas: Canvas, block: Block, carry: State
    ) -> tuple[Canvas, State]:
        """Runs one round on the rows of `canvas`, all of which have masks left in the block.

        Args:
            session: Runs the model.
            sampler: Proposes.
            canvas: The rows of this round.
            block: The open block.
            carry: What the last round on these rows left; `None` at the start of a block.
        """


@dataclass(frozen=True)
class NoVerifier(Verifier):
    """Commits what the sampler decides: one forward and one step a round."""

    def advance(
        self, session: Session, sampler: Sampler, canvas: Canvas, block: Block, carry: State
    ) -> tuple[Canvas, State]:
        view = session.look(canvas, block, sampler)
        # The sampler's state may be None, so the carry wraps it.
        (state,) = carry if isinstance(carry, tuple) else (sampler.init(view),)
        decision, state = sampler.step(view, state)
        return settle(canvas, view, decision, sampler), (state,)


def settle(canvas: Canvas, view: View, decision: Decision, sampler: Sampler) -> Canvas:
    """Applies a decision within the engine's guards.

    Only masked positions are committed, outside the open block only by samplers that see the
    suffix; [MASK] is never written; a running row that would commit nothing commits its most
    confident eligible position; fixed tokens are never re-masked.
    """
    allowed = view.masked & canvas.running[:, None] if sampler.scope == "suffix" else view.eligible
    tokens = view.proposal if decision.tokens is None else decision.tokens
    commit = decision.commit & allowed & (tokens != canvas.mask_id)
    stuck = ~commit.any(-1, keepdim=True)
    forced = stuck & highest_one(view.confidence, view.eligible)
    tokens = torch.where(forced, view.proposal, tokens)
    settled = canvas.write(view.start, commit | forced, tokens)
    if decision.remask is None:
        return settled
    fixed = canvas.fixed[:, view.start : view.start + commit.shape[1]]
    remask = decision.remask & ~view.masked & ~fixed & canvas.running[:, None]
    return settled.write(view.start, remask, torch.full_like(tokens, canvas.mask_id))
