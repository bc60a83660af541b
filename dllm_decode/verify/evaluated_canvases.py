"""Canvases of the rows that one forward looked at, with their logits.

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


class DraftStep(NamedTuple):
    """Canvases of some rows after equally many drafted steps; after none, the rows' own canvases.

    Attributes:
        rows: The rows.
        tokens: One canvas of each of these rows.
    """

    rows: list[int]
    tokens: Int[Tensor, "N L"]


class RowProgress(NamedTuple):
    """How far a row has come among its evaluated canvases, as numbers that the host knows.

    Attributes:
        reached: Branch of the row's present canvas; -1: this canvas was not evaluated.
        logits_start: Column at which the logits begin.
        num_unsettled: Unsettled positions of the row's opening.
        num_settled: Positions that the last step settled; 0 if the row took none.
    """

    reached: int = -1
    logits_start: int = 0
    num_unsettled: int = 0
    num_settled: int = 0

    @property
    def expected_steps(self) -> int:
        """Steps until the block is finished, if each step settles as many positions as the last."""
        return -(-self.num_unsettled // max(1, self.num_settled))


class EvaluatedCanvases(NamedTuple):
    """The canvases of each row that the last forward looked at, the row's own one first.

    Attributes:
        tokens: The canvases; -1 in unused branches.
        logits: For each canvas the logits of the columns from `logits_starts` on.
        logits_starts: Column of each row at which the logits begin.
        latest: The branch from which the row took its last step.
        reached: The branch of the row's present canvas; -1: this canvas was not evaluated.
        num_unsettled: Unsettled positions of the row's opening before the last step.
    """

    tokens: Int[Tensor, "B D L"]
    logits: Float[Tensor, "B D W V"]
    logits_starts: Int[Tensor, " B"]
    latest: Int[Tensor, " B"]
    reached: Int[Tensor, " B"]
    num_unsettled: Int[Tensor, " B"]

    def with_present(self, canvas: Canvas) -> "EvaluatedCanvases":
        """Returns the same canvases, with `reached` for the present canvas of each row."""
        # A longer row that has joined may have widened the canvas.
        padding = (0, canvas.width - self.tokens.shape[2])
        tokens = pad(self.tokens, padding, value=canvas.eos_ids[0]) if padding[1] else self.tokens
        is_present = (tokens == canvas.tokens[:, None]).all(-1)
        reached = torch.where(is_present.any(-1), is_present.long().argmax(-1), -1)
        return self._replace(tokens=tokens, reached=reached)

    def current_branches(self) -> Int[Tensor, " B"]:
        """Returns each row's present branch; if there is none, the branch of its last step."""
        return torch.where(self.reached < 0, self.latest, self.reached)

    def num_drafted(self) -> Int[Tensor, " B"]:
        """Counts the tokens in which each draft differs from the canvas before it."""
        drafts = self.tokens[:, 1:]
        return ((drafts != self.tokens[:, :-1]) & (drafts >= 0)).sum((1, 2))

    def num_accepted(self) -> Int[Tensor, " B"]:
        """Counts the tokens in which the present canvases differ from the `latest` ones."""
        rows = torch.arange(len(self.latest), device=self.latest.device)
        return (self.tokens[rows, self.current_branches()] != self.tokens[rows, self.latest]).sum(
            -1
        )

    def latest_logits(
        self,
        rows: Int[Tensor, " N"],
        window_starts: Sequence[int],
        logits_starts: Sequence[int],
        width: int,
    ) -> Float[Tensor, "N W V"]:
        """Returns logits of the `latest` branches of some rows.

        Args:
            rows: The rows.
            window_starts: First column of each row's window.
            logits_starts: `self.logits_starts` of these rows, as numbers that the host knows.
            width: Columns of the window.
        """
        logits = self.logits[rows, self.latest[rows]]
        offsets = [a - b for a, b in zip(window_starts, logits_starts, strict=True)]
        if len(set(offsets)) == 1:
            within: Any = (slice(None), slice(offsets[0], offsets[0] + width))
        else:
            columns = send(offsets, rows.device)[:, None]
            columns = columns + torch.arange(width, device=rows.device)
            within = (torch.arange(len(rows), device=rows.device)[:, None], columns)
        window_logits: Tensor = logits[within]
        return window_logits


def by_row_and_branch(
    values: Shaped[Tensor, "N ..."],
    rows: Sequence[int],
    branches: Sequence[int],
    size: tuple[int, int],
    *,
    fill: int = 0,
) -> Shaped[Tensor, "B D ..."]:
    """Lays out values, which come in the order of the branches, by row and branch."""
    if len(values) == size[0] * size[1]:
        # No branch is unused, so that nothing has to be copied.
        return values.reshape(size[1], size[0], *values.shape[1:]).transpose(0, 1)
    by_branch = values.new_full((*size, *values.shape[1:]), fill)
    index = send([rows, branches], values.device)
    by_branch[index[0], index[1]] = values
    return by_branch


def count_unsettled(canvas: Canvas, bounds: Sequence[tuple[int, int]]) -> Int[Tensor, " B"]:
    """Counts each row's unsettled columns within the row's bounds."""
    columns = torch.arange(canvas.width, device=canvas.tokens.device)
    limits = send(bounds, canvas.tokens.device)
    inside: Bool[Tensor, "B L"] = (columns >= limits[:, :1]) & (columns < limits[:, 1:])
    return (canvas.unsettled & inside).sum(-1)
