"""States of the canvas that one forward looked at, and what it said about each."""

from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from dllm_decode.canvas import Block, Canvas
from dllm_decode.session import Lookahead, Session
from samplers.base import Sampler
from samplers.view import View


class DraftLevel(NamedTuple):
    """One state each of some rows.

    Attributes:
        rows: Which of the round's rows.
        canvas: Their states.
    """

    rows: Int[Tensor, " N"]
    canvas: Canvas


class EvaluatedStates(NamedTuple):
    """The states of each row that the last forward looked at, the present one first.

    Attributes:
        tokens: Of the whole canvas; -1 in unused places.
        logits: The window's logits in a state.
        leave_one_out: As `View.leave_one_out`; without columns unless the sampler asks for it.
        latest: The state from which the row took its last step.
    """

    tokens: Int[Tensor, "B D L"]
    logits: Float[Tensor, "B D W V"]
    leave_one_out: Float[Tensor, "B D _"]
    latest: Int[Tensor, " B"]

    def found(self, canvas: Canvas) -> Bool[Tensor, "B D"]:
        """Says which of the known states are the rows' present ones."""
        return (self.tokens == canvas.tokens[:, None]).all(-1)

    def num_drafted(self) -> Int[Tensor, " B"]:
        """Counts what the drafts write, each beyond the state before it."""
        drafts = self.tokens[:, 1:]
        return ((drafts != self.tokens[:, :-1]) & (drafts >= 0)).sum((1, 2))

    def num_accepted(self, reached: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
        """Counts what tells the states that are reached from the latest ones."""
        rows = torch.arange(len(reached), device=reached.device)
        return (self.tokens[rows, reached] != self.tokens[rows, self.latest]).sum(-1)


def everything(canvas: Canvas) -> DraftLevel:
    """Returns the one state of all rows."""
    return DraftLevel(torch.arange(len(canvas), device=canvas.tokens.device), canvas)


def look_ahead(session: Session, canvas: Canvas, block: Block, known: EvaluatedStates) -> None:
    """Keeps the logits of the next block, for rows that have finished this one as foreseen."""
    width = block.end - block.start
    found = known.found(canvas) & (canvas.num_open(block) == 0)[:, None]
    places = found.long().argmax(-1)
    reached = torch.where(found.any(-1), places, known.latest)
    session.count_drafts(canvas, accepted=known.num_accepted(reached))
    for index in found.any(-1).nonzero().squeeze(-1).tolist():
        logits = known.logits[index, places[index], width:].clone()
        seen = Lookahead(block.end, canvas.tokens[index], logits)
        session.lookahead[int(canvas.rows[index])] = seen


def view_of(
    session: Session,
    sampler: Sampler,
    canvas: Canvas,
    block: Block,
    known: EvaluatedStates,
    rows: Int[Tensor, " N"],
) -> View:
    """Shows a canvas with the logits of each row's latest state; `rows`: which of the known."""
    latest = known.latest[rows]
    leave_one_out = known.leave_one_out[rows, latest] if sampler.leave_one_out else None
    logits = known.logits[rows, latest]
    # What was seen of the next block is not the sampler's concern yet.
    logits = logits if sampler.scope != "block" else logits[:, : block.end - block.start]
    return session.view_of(canvas, block, sampler, logits=logits, leave_one_out=leave_one_out)


def shown(session: Session, sampler: Sampler, canvas: Canvas, block: Block, seen: View) -> View:
    """Shows a canvas with the logits of another view of its rows."""
    view = session.view_of(
        canvas, block, sampler, logits=seen.computed.logits, leave_one_out=seen.leave_one_out
    )
    # What was found of these logits need not be found again.
    return replace(view, computed=seen.computed)


def imagined(view: View) -> View:
    """Completes `leave_one_out`: what was committed since was predicted without being seen."""
    if view.leave_one_out is None:
        return view
    before = replace(view, reads_committed=True).probability(view.tokens)
    return replace(
        view, leave_one_out=torch.where(view.leave_one_out == 0.0, before, view.leave_one_out)
    )


def joined(parts: list[Tensor]) -> Tensor:
    """Puts parts behind each other; a single one as it is."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def placed(
    parts: Shaped[Tensor, "N ..."],
    rows: Int[Tensor, " N"],
    places: Int[Tensor, " N"],
    size: tuple[int, int],
    *,
    fill: int = 0,
) -> Shaped[Tensor, "B D ..."]:
    """Lays parts out by row and place."""
    if len(parts) == size[0] * size[1]:
        # Nothing is missing: they come place by place, so a view will do.
        return parts.reshape(size[1], size[0], *parts.shape[1:]).transpose(0, 1)
    laid = parts.new_full((*size, *parts.shape[1:]), fill)
    laid[rows, places] = parts
    return laid
