"""The contract between the engine and a cache policy, and the policy that caches nothing."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TypeAlias

from jaxtyping import Bool, Int
from torch import Tensor

from dllm_decode.canvas import Canvas

Columns: TypeAlias = slice | Int[Tensor, "B Q"]
"""Absolute columns: a slice, the same for all rows, or per row, ascending. The slice is cheaper."""


@dataclass(frozen=True)
class CacheQuery:
    """One forward before it is run, as a cache policy sees it.

    Attributes:
        canvas: The rows of this forward.
        needed: Columns of the sampler's window, and those that predict them.
        end: First column that the needed ones cannot see: the canvas length, or the end of the
            window when the model is block-causal.
        shift: Columns from a column to the one that its logits predict, 0 or 1.
        step: Forwards since the block was opened.
        previous: Per row the first column that its last forward needed; `None` before its first.
        pending: Columns whose slot was computed while [MASK] stood there, or never. `None` unless
            the policy reads it.
        most_columns: The greatest of `CachePolicy.num_columns`, if the host has learnt it already.
    """

    canvas: Canvas
    needed: slice
    end: int
    shift: int
    step: int
    previous: tuple[int | None, ...]
    pending: Bool[Tensor, "B L"] | None
    most_columns: int | None = None


class CachePolicy(ABC):
    """Says which columns are computed at one forward.

    What a forward computes overwrites its slots of the one key-value memory; every other slot
    keeps what an earlier forward left there. So a policy need not say what is stored: what must
    not last is computed again next time.

    Concrete policies are frozen dataclasses without state whose repr is their configuration.
    """

    @property
    def needs_kv_cache(self) -> bool:
        """Whether some forward leaves out columns that it attends to."""
        return True

    @property
    def computes_suffix(self) -> bool:
        """Whether every forward computes all masked columns behind the open block too."""
        return True

    @property
    def recomputes_committed(self) -> bool:
        """Whether every forward computes all committed columns of the window."""
        return True

    @property
    def is_path_dependent(self) -> bool:
        """Whether the memory depends on the forwards that led to a state, not on that alone."""
        return False

    @property
    def reads_pending(self) -> bool:
        """Whether it asks which columns are pending."""
        return False

    @abstractmethod
    def recompute(self, forward: CacheQuery) -> Columns:
        """Returns the absolute columns to compute.

        Every column that predicts a masked one of the window is among them. A row with fewer
        columns than another repeats some of its own. What predicts a committed column may be left
        out: the sampler then sees certainty about the token in place.
        """

    def num_columns(self, forward: CacheQuery) -> Int[Tensor, " B"] | None:
        """Counts each row's columns of `recompute`, if only the device knows; else `None`.

        Asked behind a step about the forward that is likely next, so that the host learns it when
        it has to wait for the device anyway.
        """
        return None


@dataclass(frozen=True)
class NoCache(CachePolicy):
    """Computes every column at every forward: exact, and the reference of all other policies."""

    @property
    def needs_kv_cache(self) -> bool:
        return False

    def recompute(self, forward: CacheQuery) -> Columns:
        return slice(0, forward.end)


def require_period(refresh_every: int, least: int) -> None:
    """Raises ValueError if a number of forwards between refreshes is too small."""
    if refresh_every < least:
        raise ValueError(
            f"refresh_every is at least {least} forward{'s' * (least != 1)}, got {refresh_every}."
        )
