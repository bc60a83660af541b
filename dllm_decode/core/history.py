"""How often, and since when, each column was computed, for cache policies that read it."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.functional import pad

from dllm_decode.core.canvas import Canvas


class History(NamedTuple):
    """How often, and since when, each column was computed with its token.

    Attributes:
        clean_forwards: Forwards that computed each column since one last computed it as [MASK]. 0:
            the column's slot holds keys and values of [MASK], or nothing.
        clean_since: Number of the row's forward, from 1, that first computed each column with its
            token; 0: none did.
        num_forwards: Forwards of each row.
    """

    clean_forwards: Int[Tensor, "B L"]
    clean_since: Int[Tensor, "B L"]
    num_forwards: Int[Tensor, " B"]

    @staticmethod
    def blank(canvas: Canvas) -> "History":
        """Returns the history of rows before their first forward."""
        zeros = torch.zeros_like(canvas.tokens)
        return History(zeros, zeros, torch.zeros_like(canvas.prompt_lengths))

    def joined(self, others: "History") -> "History":
        """Returns these rows, then others."""
        width = max(self.clean_since.shape[1], others.clean_since.shape[1])
        parts = [
            [pad(part, (0, width - part.shape[1])) if part.ndim > 1 else part for part in pair]
            for pair in zip(self, others, strict=True)
        ]
        return History(*(torch.cat(pair) for pair in parts))

    def pending(self, canvas: Canvas) -> Bool[Tensor, "B L"]:
        """Returns the columns that hold [MASK], held it when computed last, or never were."""
        return (self.clean_forwards == 0) | (canvas.tokens == canvas.mask_id)

    def noted(
        self,
        canvas: Canvas,
        rows: Int[Tensor, " N"],
        columns: Int[Tensor, "N Q"],
    ) -> "History":
        """Returns the history after a forward that computed some columns of some rows."""
        clean, since, num_forwards = (part.clone() for part in self)
        index = (rows[:, None], columns)
        is_masked = canvas.tokens[index] == canvas.mask_id
        num_forwards[rows] += 1
        clean[index] = (clean[index] + 1).masked_fill(is_masked, 0)
        first = torch.where(since[index] > 0, since[index], num_forwards[rows, None])
        since[index] = first.masked_fill(is_masked, 0)
        return History(clean, since, num_forwards)
