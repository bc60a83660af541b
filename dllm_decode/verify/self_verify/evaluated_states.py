"""States of the canvas that one forward looked at, and what it said about each."""

from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from dllm_decode.canvas import Block, Canvas
from dllm_decode.lookahead import Lookahead, Pending
from dllm_decode.packing import Arrangement
from dllm_decode.session import Session
from samplers.base import Sampler
from samplers.view import View


class DraftLevel(NamedTuple):
    """One state each of some rows.

    Attributes:
        rows: Which of the round's rows.
        canvas: The states of all of them; those of other rows mean nothing.
    """

    rows: list[int]
    canvas: Canvas

    def taken(self) -> Canvas:
        """Returns the states of the rows."""
        return taken(self.canvas, self.rows)


class Standing(NamedTuple):
    """What the host knows of a row.

    Attributes:
        place: Which of the known states the row is in; -1: none of them.
        masks: Masks that are left in the block.
        committed: Masks that its last step committed; 0 if it took none.
    """

    place: int
    masks: int
    committed: int

    @property
    def expected_steps(self) -> int:
        """Steps until the block is finished, if all commit as many as the last one."""
        return -(-self.masks // max(1, self.committed))


class EvaluatedStates(NamedTuple):
    """The states of each row that the last forward looked at, the present one first.

    Attributes:
        tokens: Of the whole canvas; -1 in unused places.
        logits: The window's logits in a state.
        leave_one_out: As `View.leave_one_out`; without columns unless the sampler asks for it.
        latest: The state from which the row took its last step.
        reached: The row's present state; -1: none of them.
    """

    tokens: Int[Tensor, "B D L"]
    logits: Float[Tensor, "B D W V"]
    leave_one_out: Float[Tensor, "B D _"]
    latest: Int[Tensor, " B"]
    reached: Int[Tensor, " B"]

    @staticmethod
    def of(
        tokens: Int[Tensor, "B D L"],
        logits: Float[Tensor, "B D W V"],
        leave_one_out: Float[Tensor, "B D _"],
    ) -> "EvaluatedStates":
        """Returns what a forward found, of rows that are in their first state."""
        first = torch.zeros_like(tokens[:, 0, 0])
        return EvaluatedStates(tokens, logits, leave_one_out, latest=first, reached=first)

    def found(self, canvas: Canvas) -> Bool[Tensor, "B D"]:
        """Says which of the known states are the rows' present ones."""
        return (self.tokens == canvas.tokens[:, None]).all(-1)

    def moved(self, canvas: Canvas) -> "EvaluatedStates":
        """Looks for the rows' present states among those that are known."""
        found = self.found(canvas)
        reached = torch.where(found.any(-1), found.long().argmax(-1), -1)
        return self._replace(reached=reached)

    def current(self) -> Int[Tensor, " B"]:
        """Returns the present state, or else the one of the last step."""
        return torch.where(self.reached < 0, self.latest, self.reached)

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
    return DraftLevel(list(range(len(canvas))), canvas)


def taken(canvas: Canvas, rows: list[int]) -> Canvas:
    """Returns some rows; all of them as they are."""
    if len(rows) == len(canvas):
        return canvas
    return canvas.take(torch.tensor(rows, device=canvas.rows.device))


def look_ahead(session: Session, canvas: Canvas, block: Block, known: EvaluatedStates) -> None:
    """Keeps what is known of the next block until the host knows which rows have finished."""
    finished = canvas.num_open(block) == 0
    reached = torch.where(finished, known.current(), known.latest)
    session.count_drafts(canvas, accepted=known.num_accepted(reached))
    session.pending = Pending(
        start=block.end,
        ids=session.row_ids(canvas),
        tokens=canvas.tokens,
        logits=known.logits[:, :, block.end - block.start :],
        places=reached,
    )


def keep_lookahead(session: Session) -> None:
    """Keeps the logits of the next block, for rows that have finished this one as foreseen."""
    pending, session.pending = session.pending, None
    if pending is None:
        return
    for index, numbers in enumerate(session.answers(pending.ids)):
        row = Standing(*numbers)
        if row.place >= 0 and row.masks == 0:
            logits = pending.logits[index].index_select(0, pending.places[index, None])[0]
            seen = Lookahead(pending.start, pending.tokens[index], logits)
            session.lookahead[pending.ids[index]] = seen


def recalled(session: Session, canvas: Canvas, block: Block) -> dict[int, Tensor]:
    """Returns the logits that are known of a block that is opened now, for rows that have some."""
    seen = [session.lookahead.pop(row, None) for row in session.row_ids(canvas)]
    known = {i: part for i, part in enumerate(seen) if part and part.start == block.start}
    if not known:
        return {}
    same = [(part.tokens == canvas.tokens[index]).all() for index, part in known.items()]
    is_same = torch.stack(same).tolist()
    pairs = zip(known.items(), is_same, strict=True)
    return {index: part.logits for (index, part), is_equal in pairs if is_equal}


def arrange(session: Session, levels: list[DraftLevel]) -> Arrangement:
    """Lays out the states of a forward: the present ones of all rows, then the drafts."""
    canvas = levels[0].canvas
    rows = [row for level in levels for row in level.rows]
    places = [depth for depth, level in enumerate(levels) for _ in level.rows]
    known = session.arrangement
    if known is not None and (known.source, known.rows, known.places) == (
        canvas.layout,
        rows,
        places,
    ):
        return known
    if len(rows) == len(canvas) * len(levels):
        every = torch.arange(len(rows), device=canvas.rows.device)
        index = torch.stack([every % len(canvas), every // len(canvas)])
    else:
        index = torch.tensor([rows, places], device=canvas.rows.device)
    layout = canvas.take(index[0]).layout
    session.arrangement = Arrangement(canvas.layout, rows, places, index, layout)
    return session.arrangement


def view_of(
    session: Session,
    sampler: Sampler,
    canvas: Canvas,
    block: Block,
    known: EvaluatedStates,
    rows: Int[Tensor, " N"] | None = None,
) -> View:
    """Shows a canvas with the logits of each row's latest state; `rows`: which of the known."""
    if rows is None:
        rows = torch.arange(len(canvas), device=canvas.rows.device)
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
