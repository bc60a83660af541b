"""Describes one forward: the window to predict, and which branches, columns and keys."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from jaxtyping import Int, Shaped
from torch import Tensor

from dllm_decode.core.canvas import Canvas
from dllm_decode.core.columns import Columns
from dllm_decode.core.model import ForwardInputs
from dllm_decode.core.rows import Row
from dllm_decode.core.window import Window


class Branches(NamedTuple):
    """Canvases of some rows that one forward looks at: one for each row, or several drafts.

    Attributes:
        tokens: The canvases.
        rows: Row of each canvas: first those of branch 0, then those of branch 1, and so on. The
            logits of a forward are in this order.
        branch_numbers: Number of each canvas in its row, from 0; below `Verifier.num_branches`,
            unless `in_columns`. Branch 0 reads and writes the row's own cache slots, so that an
            uncommitted draft there lasts until its columns are computed again; the others change
            neither caches nor what cache policies count. A row may have any set of branches; with
            `in_columns` it needs branch 0.
        in_columns: False: a branch is a row of the forward, with a copy of the row's cache. True: a
            branch is further columns of its row, which share the row's cache.
        causal_from: For each branch the column from which on attention is causal; needs
            `in_columns`. From there on, a column of branch 0 sees the columns up to itself, and a
            column of another branch sees itself and the columns of branch 0 before it. Empty: as
            the model attends.
    """

    tokens: Int[Tensor, "N L"]
    rows: tuple[int, ...]
    branch_numbers: tuple[int, ...]
    in_columns: bool = False
    causal_from: tuple[int, ...] = ()

    @staticmethod
    def of_rows(canvas: Canvas) -> "Branches":
        """Returns a canvas as branch 0 of each row."""
        return Branches(canvas.tokens, tuple(range(len(canvas))), (0,) * len(canvas))

    def rows_and_branches(self, members: Sequence[int]) -> tuple[list[int], list[int]]:
        """Returns of some canvases the rows, and which branch of its row each is."""
        return [self.rows[n] for n in members], [self.branch_numbers[n] for n in members]

    @property
    def writers(self) -> set[int]:
        """The rows of branches 0, which alone write the rows' own slots."""
        pairs = zip(self.rows, self.branch_numbers, strict=True)
        return {row for row, branch in pairs if branch == 0}


Edit: TypeAlias = Callable[[ForwardInputs, tuple[int, ...]], ForwardInputs]
"""Returns other inputs for some rows of a forward, or some of its branches, given their numbers."""


def keep_inputs(inputs: ForwardInputs, members: tuple[int, ...]) -> ForwardInputs:
    """Returns the inputs as they are."""
    return inputs


class Pass(NamedTuple):
    """Describes one forward.

    Attributes:
        window: The columns to predict.
        offsets: Those in the window of the columns to predict, equally many in each row; `None`:
            the whole window.
        branches: Canvases to look at; `None`: that of the state, as branch 0 of each row.
        policy_rows: The rows that the cache policy is shown, in the order of the state, if it must
            take other columns for the open block; empty: the rows of the state.
        columns: For each row the columns to compute, which needs a key-value cache; columns that
            were never computed are added. Empty: the policy is asked.
        edit: Changes the inputs of the model, such as `attend`. A caller whose edit adds columns
            must count them.
    """

    window: Window
    offsets: Int[Tensor, "B N"] | None = None
    branches: Branches | None = None
    policy_rows: Sequence[Row] = ()
    columns: Sequence[Columns] = ()
    edit: Edit = keep_inputs


def part_of(
    values: Shaped[Tensor, "N W"], offsets: Int[Tensor, "N n"] | None
) -> Shaped[Tensor, "N _"]:
    """Returns the columns of each row at some offsets in a window; `None`: all columns."""
    return values if offsets is None else values.gather(1, offsets)
