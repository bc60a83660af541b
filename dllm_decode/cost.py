"""What a decode costs, row by row."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from dllm_decode.canvas import Canvas


class Cost:
    """Counts what the models did for each row; only the session writes to it.

    Forwards of one layout of rows are counted by the host and settled when somebody looks, so that
    a step costs an accelerator nothing.

    Attributes:
        forwards: Calls of the mask predictor.
        nfe: Forwards each row took part in.
        query_positions: Columns computed for each row, summed over its forwards.
        target_forwards: Calls of a verifier's causal target.
        target_nfe: Those each row took part in.
        drafted: Tokens that a verifier had drafted for each row.
        accepted: Those of them that were verified and kept.
    """

    def __init__(self, num_rows: int, device: torch.device) -> None:
        self.forwards = 0
        self._nfe = torch.zeros(num_rows, dtype=torch.long, device=device)
        self._query_positions = torch.zeros_like(self._nfe)
        self.target_forwards = 0
        self.target_nfe = torch.zeros_like(self._nfe)
        self.drafted = torch.zeros_like(self._nfe)
        self.accepted = torch.zeros_like(self._nfe)
        self._open = _Open(torch.arange(0, device=device), layout=-1)

    @property
    def nfe(self) -> Int[Tensor, " R"]:
        self._settle()
        return self._nfe

    @property
    def query_positions(self) -> Int[Tensor, " R"]:
        self._settle()
        return self._query_positions

    def add_forward(self, canvas: Canvas, num_columns: int) -> None:
        """Counts a call of the mask predictor.

        Args:
            canvas: Who took part; a row of which several states did is there as often.
            num_columns: Columns that were computed for each.
        """
        self.forwards += 1
        if canvas.layout != self._open.layout:
            self._settle()
            self._open = _Open(canvas.rows, canvas.layout)
        self._open.num_forwards += 1
        self._open.num_columns += num_columns

    def add_target_forward(self, rows: Int[Tensor, " B"]) -> None:
        """Counts a call of the causal target."""
        self.target_forwards += 1
        self.target_nfe[rows] += 1

    def add_drafts(
        self,
        rows: Int[Tensor, " B"],
        *,
        drafted: Int[Tensor, " B"] | None,
        accepted: Int[Tensor, " B"] | None,
    ) -> None:
        """Counts tokens that were drafted, and those that were kept; `None`: none were."""
        if drafted is not None:
            self.drafted.index_add_(0, rows, drafted)
        if accepted is not None:
            self.accepted.index_add_(0, rows, accepted)

    def reset(self, rows: Int[Tensor, " N"]) -> None:
        """Gives rows to others: their counts start at 0."""
        counts = (self.nfe, self.query_positions, self.target_nfe, self.drafted, self.accepted)
        for count in counts:
            count[rows] = 0

    def _settle(self) -> None:
        rows = self._open.rows
        if not self._open.num_forwards:
            return
        # Assigned once however often a row is named, and added as often.
        self._nfe[rows] += self._open.num_forwards
        self._query_positions.index_add_(0, rows, torch.full_like(rows, self._open.num_columns))
        self._open = _Open(rows, self._open.layout)


@dataclass
class _Open:
    """Forwards of one layout of rows that are not yet counted."""

    rows: Int[Tensor, " B"]
    layout: int
    num_forwards: int = 0
    num_columns: int = 0
