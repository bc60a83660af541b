"""The contract between the engine and a cache policy, and the policy that caches nothing."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dllm_decode.canvas import Canvas

Columns: TypeAlias = slice | Int[Tensor, "B Q"]
"""Absolute columns: a slice, the same for all rows, or per row, ascending. The slice is cheaper."""


class History(NamedTuple):
    """What was computed when; see the properties of `CacheQuery` of these names."""

    clean_forwards: Int[Tensor, "B L"]
    clean_since: Int[Tensor, "B L"]
    num_forwards: Int[Tensor, " B"]


@dataclass(frozen=True)
class CacheQuery:
    """One forward before it is run, as a cache policy sees it.

    Attributes:
        canvas: The rows of this forward.
        needed: Columns of the sampler's window, and those that predict them.
        end: First column that the needed ones cannot see: the canvas length, or the end of the
            window when the model is block-causal.
        shift: Columns from a column to the one that its logits predict, 0 or 1.
        step: Forwards since the open block was opened, this one not included: 0 at the block's
            first forward, the same for all rows of the query. Where rows open and finish blocks at
            their own pace, it counts from there, and each query is of the rows at one pace.
        previous: Per row the first column that the row's own last forward needed, be it for this
            block or an earlier one; `None` before the row's first forward.
        history: What was computed when; `None` if the policy says that it does not read it.
    """

    canvas: Canvas
    needed: slice
    end: int
    shift: int
    step: int
    previous: tuple[int | None, ...]
    history: History | None = None

    @property
    def clean_forwards(self) -> Int[Tensor, "B L"]:
        """How many of the row's forwards computed each column since [MASK] last stood there.

        0: the column's slot holds what [MASK] gave, or nothing.

        Raises:
            RuntimeError: If the policy says that it does not read this.
        """
        return self._known.clean_forwards

    @property
    def clean_since(self) -> Int[Tensor, "B L"]:
        """Number of the row's forward that first computed each column with its token; 0: none did.

        Raises:
            RuntimeError: If the policy says that it does not read this.
        """
        return self._known.clean_since

    @property
    def num_forwards(self) -> Int[Tensor, " B"]:
        """Forwards of each row so far, this one not included.

        Raises:
            RuntimeError: If the policy says that it does not read this.
        """
        return self._known.num_forwards

    @property
    def _known(self) -> History:
        if self.history is None:
            raise RuntimeError(
                "reads_history must be True in a cache policy that reads clean_forwards, "
                "clean_since, num_forwards or pending."
            )
        return self.history

    def first(self, *, entry: bool) -> int:
        """Returns the first needed column.

        Args:
            entry: Whether the window's first token is committed, so that what predicts it is not
                needed; see `CachePolicy.commits_entry`.
        """
        start: int = self.needed.start
        return start + (self.shift if entry else 0)

    @property
    def pending(self) -> Bool[Tensor, "B L"]:
        """Columns whose slot was computed while [MASK] stood there, or never."""
        return self.clean_forwards == 0


class CachePolicy(ABC):
    """Says which columns are computed at one forward.

    What a forward computes overwrites its slots of the one key-value cache; every other slot
    keeps what an earlier forward left there. So a policy need not say what is stored: what must
    not last is computed again next time.

    The properties promise something to the engine, samplers and verifiers. Unless overridden they
    promise nothing, so a policy that forgets one is refused more often, and is never wrong.

    Four things are checked, and an error names the policy: a forward that leaves out columns
    though `needs_kv_cache` is False, one that leaves out what predicts an open mask which the
    sampler sees, a row's first forward that leaves out a column which is not hidden, and history
    that is read though `reads_history` is False. All else is taken on trust. With a false
    `is_path_dependent`, `SelfVerify` may change tokens; with a false `recomputes_committed`, a
    sampler that asks for the model's logits at committed tokens is shown certainty.

    Concrete policies are frozen dataclasses without state whose repr is their configuration.
    """

    @property
    def needs_kv_cache(self) -> bool:
        """Whether some forward leaves out columns that it attends to."""
        return True

    @property
    def computes_suffix(self) -> bool:
        """Promises that every forward computes all masked columns behind the open block too."""
        return False

    @property
    def recomputes_committed(self) -> bool:
        """Promises that every forward computes all committed columns of the window."""
        return False

    @property
    def is_path_dependent(self) -> bool:
        """True if the cached keys may depend on earlier forwards, not on the tokens alone."""
        return True

    @property
    def reads_history(self) -> bool:
        """True if the policy reads what `CacheQuery` says of earlier forwards but `previous`."""
        return True

    @property
    def commits_entry(self) -> bool:
        """True if a block's first step commits its first token whatever the sampler says.

        Then later forwards may leave out the column before the block, which predicts that token. It
        matters on a model whose logits predict the next column.
        """
        return False

    def hidden(self, query: CacheQuery) -> slice | None:
        """Returns columns that this forward neither computes nor attends to; `None`: none.

        A column that is no longer hidden is computed by the first forward that sees it.
        """
        return None

    @abstractmethod
    def recompute(self, query: CacheQuery) -> Columns:
        """Returns the absolute columns to compute.

        Every column that predicts an open mask of the window is among them. The first forward of a
        row computes every column of it that is not hidden, the prompt included: until a column is
        computed, its slot holds nothing. A row with fewer columns than another repeats some of its
        own. What predicts a committed column may be left out: the sampler then sees certainty about
        the token in place.
        """


@dataclass(frozen=True)
class NoCache(CachePolicy):
    """Computes every column at every forward: exact, and the reference of all other policies."""

    @property
    def needs_kv_cache(self) -> bool:
        return False

    @property
    def computes_suffix(self) -> bool:
        return True

    @property
    def recomputes_committed(self) -> bool:
        return True

    @property
    def is_path_dependent(self) -> bool:
        return False

    @property
    def reads_history(self) -> bool:
        return False

    def recompute(self, query: CacheQuery) -> Columns:
        return slice(0, query.end)


def require_count(name: str, value: object, *, least: int, unit: str = "forwards") -> None:
    """Raises ValueError unless a value is an integer of at least so many units."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be an integer number of {unit}, got {value!r}.")
    if value < least:
        raise ValueError(f"{name} must be at least {least} {unit}, got {value}.")


def refreshes(step: int, every: int) -> bool:
    """Says whether a block's forward computes everything: the first, and each `every`-th."""
    return step % every == 0 if every else step == 0


def columns_from(firsts: Int[Tensor, " B"], query: CacheQuery) -> Columns:
    """Returns all columns from each row's first one on; at least the last needed one."""
    firsts = firsts.clamp(0, query.needed.stop - 1)
    # Only the device knows where that is, so the host waits for it once more a step.
    first, last = torch.stack([firsts.min(), firsts.max()]).tolist()
    if first == last:
        return slice(first, query.end)
    columns = torch.arange(first, query.end, device=firsts.device)
    return torch.maximum(columns, firsts[:, None])
