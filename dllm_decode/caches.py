"""Cache policies: which columns a forward computes, and hence whose keys and values it refreshes."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from dllm_decode.canvas import Canvas


class CachePolicy(ABC):
    """Says which columns are computed at one forward.

    What a forward computes overwrites its slots of the one key-value memory; every other slot
    keeps what an earlier forward left there.
    """

    @property
    @abstractmethod
    def needs_memory(self) -> bool:
        """Whether some forward leaves out columns that it attends to."""

    @abstractmethod
    def recompute(self, canvas: Canvas, needed: slice, step: int) -> Int[Tensor, "B Q"]:
        """Returns the absolute columns to compute, ascending.

        Args:
            canvas: The rows of this forward.
            needed: Columns that must be among them: those that predict the open block.
            step: Forwards since the block was opened.
        """


@dataclass(frozen=True)
class NoCache(CachePolicy):
    """Computes every column at every forward: exact, and the reference of all other policies."""

    @property
    def needs_memory(self) -> bool:
        return False

    def recompute(self, canvas: Canvas, needed: slice, step: int) -> Int[Tensor, "B Q"]:
        columns = torch.arange(canvas.length, device=canvas.tokens.device)
        return columns.expand(len(canvas), -1)
