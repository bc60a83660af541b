"""One forward, described: which states, columns and keys."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Bool, Int
from torch import Tensor

from dllm_decode.core.canvas import Canvas
from dllm_decode.core.columns import Columns
from dllm_decode.core.window import Window


class Drafts(NamedTuple):
    """Several states of some rows that one forward looks at.

    Attributes:
        tokens: The states: whole canvases.
        rows: Row of each state, in ascending order of `branches`.
        branches: Branch of each state within its row; below `Verifier.num_branches`, unless
            `in_columns`. Branch 0 reads and writes the row's own cache slots, so that an
            uncommitted draft there lasts until its columns are computed again; the others leave no
            trace. A row may have any set of branches.
        in_columns: False: a state is a row of the forward, with a copy of the row's cache. True: a
            state is further columns of its row, which share the row's cache.
    """

    tokens: Int[Tensor, "N L"]
    rows: tuple[int, ...]
    branches: tuple[int, ...]
    in_columns: bool = False


class Pass(NamedTuple):
    """Describes one forward.

    Attributes:
        window: The columns to predict.
        asked: Offsets in the window of the columns to predict, equally many in each row; `None`:
            the whole window.
        drafts: States of the rows to look at; `None`: the canvas.
        blocks: For each row the columns that the cache policy takes for the open block: first, and
            first after it; `None`: those of `Row.opening`.
        is_first: True if the policy takes the forward for the first one of that block.
        columns: For each row the columns to compute, which needs a key-value cache; columns that
            were never computed are added. `None`: the policy is asked.
        attend: Which keys each computed column sees, as `ForwardInputs.attend`; then every row must
            compute equally many columns. `None`: as the model attends.
        leave_one_out: True if logits that predict each column without seeing it are added.
    """

    window: Window
    asked: Int[Tensor, "B N"] | None = None
    drafts: Drafts | None = None
    blocks: Sequence[tuple[int, int]] | None = None
    is_first: bool = False
    columns: Sequence[Columns] | None = None
    attend: Bool[Tensor, "B Q K"] | None = None
    leave_one_out: bool = False

    def states(self, canvas: Canvas) -> Drafts:
        """Returns the states to look at: the drafts, or the canvas as branch 0 of each row."""
        if self.drafts is not None:
            return self.drafts
        return Drafts(canvas.tokens, tuple(range(len(canvas))), (0,) * len(canvas))
