"""States of the rows that one forward looked at, with their logits.

Row 0 has two drafts, row 1 one, row 2 (in its first forward of a block) none:

    branch     0         1         2           tokens [B, D, L], logits [B, D, W, V];
    row 0      present   draft 1   draft 2     unused branches hold -1
    row 1      present   draft 1   -
    row 2      present   -         -
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn.functional import pad

from dllm_decode.core.canvas import Canvas
from dllm_decode.core.sending import send


class Level(NamedTuple):
    """One state for each of the listed rows.

    Attributes:
        rows: The rows.
        tokens: Their states: whole canvases.
    """

    rows: list[int]
    tokens: Int[Tensor, "N L"]


class Standing(NamedTuple):
    """The evaluated state that a row is in, as numbers that the host knows.

    Attributes:
        reached: Branch of the row's present state; -1: that state was not evaluated.
        start: Column at which the logits begin.
        num_open: Unsettled positions of the open block.
        committed: Positions that the last step settled; 0 if the row took none.
    """

    reached: int = -1
    start: int = 0
    num_open: int = 0
    committed: int = 0

    @property
    def expected_steps(self) -> int:
        """Steps until the block is finished, if each step settles as many positions as the last."""
        return -(-self.num_open // max(1, self.committed))


class EvaluatedStates(NamedTuple):
    """The states of each row that the last forward looked at, the present one first.

    Attributes:
        tokens: The states; -1 in unused branches.
        logits: For each state the logits of the columns from `starts` on.
        starts: Column of each row at which the logits begin.
        latest: The branch from which the row took its last step.
        reached: The branch of the row's present state; -1: that state was not evaluated.
        num_open: Unsettled positions of the open block before the last step.
    """

    tokens: Int[Tensor, "B D L"]
    logits: Float[Tensor, "B D W V"]
    starts: Int[Tensor, " B"]
    latest: Int[Tensor, " B"]
    reached: Int[Tensor, " B"]
    num_open: Int[Tensor, " B"]

    def moved(self, canvas: Canvas) -> "EvaluatedStates":
        """Returns the states with `reached` updated to the present canvas."""
        # A longer row that has joined may have widened the canvas.
        padding = (0, canvas.width - self.tokens.shape[2])
        tokens = pad(self.tokens, padding, value=canvas.eos_ids[0]) if padding[1] else self.tokens
        is_present = (tokens == canvas.tokens[:, None]).all(-1)
        reached = torch.where(is_present.any(-1), is_present.long().argmax(-1), -1)
        return self._replace(tokens=tokens, reached=reached)

    def current(self) -> Int[Tensor, " B"]:
        """Returns each row's present branch; if there is none, the branch of its last step."""
        return torch.where(self.reached < 0, self.latest, self.reached)

    def num_drafted(self) -> Int[Tensor, " B"]:
        """Counts the tokens in which each draft differs from the state before it."""
        drafts = self.tokens[:, 1:]
        return ((drafts != self.tokens[:, :-1]) & (drafts >= 0)).sum((1, 2))

    def num_accepted(self) -> Int[Tensor, " B"]:
        """Counts the tokens in which the present states differ from the latest ones."""
        rows = torch.arange(len(self.latest), device=self.latest.device)
        return (self.tokens[rows, self.current()] != self.tokens[rows, self.latest]).sum(-1)

    def latest_logits(
        self,
        rows: Int[Tensor, " N"],
        starts: Sequence[int],
        logit_starts: Sequence[int],
        width: int,
    ) -> Float[Tensor, "N W V"]:
        """Returns logits of the latest states of some rows.

        Args:
            rows: The rows.
            starts: First column of each row's window.
            logit_starts: First column of each row's logits: `self.starts`, known to the host.
            width: Columns of the window.
        """
        logits = self.logits[rows, self.latest[rows]]
        offsets = [start - begin for start, begin in zip(starts, logit_starts, strict=True)]
        if len(set(offsets)) == 1:
            within: Any = (slice(None), slice(offsets[0], offsets[0] + width))
        else:
            columns = send(offsets, rows.device)[:, None]
            columns = columns + torch.arange(width, device=rows.device)
            within = (torch.arange(len(rows), device=rows.device)[:, None], columns)
        window_logits: Tensor = logits[within]
        return window_logits


def states_by_row(
    parts: Shaped[Tensor, "N ..."],
    rows: Sequence[int],
    branches: Sequence[int],
    size: tuple[int, int],
    *,
    fill: int = 0,
) -> Shaped[Tensor, "B D ..."]:
    """Lays out states, which come in the order of their branches, by row and branch."""
    if len(parts) == size[0] * size[1]:
        # No branch is unused, so that nothing has to be copied.
        return parts.reshape(size[1], size[0], *parts.shape[1:]).transpose(0, 1)
    by_branch = parts.new_full((*size, *parts.shape[1:]), fill)
    index = send([rows, branches], parts.device)
    by_branch[index[0], index[1]] = parts
    return by_branch


def num_unsettled(canvas: Canvas, bounds: Sequence[tuple[int, int]]) -> Int[Tensor, " B"]:
    """Counts each row's unsettled columns within the row's bounds."""
    columns = torch.arange(canvas.width, device=canvas.tokens.device)
    limits = send(bounds, canvas.tokens.device)
    inside: Bool[Tensor, "B L"] = (columns >= limits[:, :1]) & (columns < limits[:, 1:])
    return (canvas.unsettled & inside).sum(-1)
