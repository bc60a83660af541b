"""What a decode costs, row by row."""

import torch
from jaxtyping import Int
from torch import Tensor


class Bill:
    """Counts what the models did for each row; only the session writes to it.

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
        self.nfe = torch.zeros(num_rows, dtype=torch.long, device=device)
        self.query_positions = torch.zeros_like(self.nfe)
        self.target_forwards = 0
        self.target_nfe = torch.zeros_like(self.nfe)
        self.drafted = torch.zeros_like(self.nfe)
        self.accepted = torch.zeros_like(self.nfe)

    def add_forward(self, rows: Int[Tensor, " B"], num_columns: int) -> None:
        """Puts a call of the mask predictor on the bill.

        Args:
            rows: Who took part; a row of which several states did is named as often.
            num_columns: Columns that were computed for each.
        """
        self.forwards += 1
        # Assigned once however often a row is named, and added as often.
        self.nfe[rows] += 1
        self.query_positions.index_add_(0, rows, torch.full_like(rows, num_columns))

    def add_target_forward(self, rows: Int[Tensor, " B"]) -> None:
        """Puts a call of the causal target on the bill."""
        self.target_forwards += 1
        self.target_nfe[rows] += 1

    def reset(self, rows: Int[Tensor, " N"]) -> None:
        """Gives rows to others: their counts start at 0."""
        counts = (self.nfe, self.query_positions, self.target_nfe, self.drafted, self.accepted)
        for count in counts:
            count[rows] = 0
