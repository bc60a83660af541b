"""The contract between the engine and a cache policy, and the policy that caches nothing."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Int
from torch import Tensor

from dllm_decode.caches.history import History
from dllm_decode.core.canvas import Canvas
from dllm_decode.core.columns import Columns, columns
from dllm_decode.core.rows import Row
from samplers.facts import Fact, PlugIn

RECOMPUTED = frozenset({Fact.LOGITS_BEHIND_BLOCK, Fact.LOGITS_OF_COMMITTED})
"""Facts of a policy that computes the open block and all columns after it in every forward."""


class CacheQuery(NamedTuple):
    """A forward of one row that is about to run, as a cache policy sees it: integers only.

    Columns count from the row's own first token.

    Attributes:
        row: How far the row has come. `row.period_forwards` and `row.nfe` do not count this
            forward.
        end: First column that this forward cannot see: `row.end`, or the end of the open block on a
            block-causal model.
        shift: Columns from a column to the one that its logits predict, 0 or 1.
    """

    row: Row
    end: int
    shift: int

    @property
    def block(self) -> tuple[int, int]:
        """The open block: its first column, and the first column after it."""
        return self.row.opening.block

    @property
    def first_needed(self) -> int:
        """The first column that predicts the open block; column 0 is predicted by none."""
        return max(0, self.block[0] - self.shift)

    @property
    def first_unfrozen(self) -> int:
        """The first column that was not computed when its block was finished."""
        last = self.row.previous_first_needed
        return 0 if last is None else min(last, self.first_needed)


class CachePolicy(PlugIn, ABC):
    """Decides which columns a forward computes.

    A forward overwrites the cache slots of the columns that it computes; all other slots keep their
    keys and values. A policy therefore does not say which columns to store, only which to compute
    again.

    Samplers and verifiers rely on the facts that a policy gives. Unless `gives` is overridden a
    policy gives none, so a policy that forgets a fact is refused more often, and is never wrong.

    Two things are checked, and an error names the policy: a forward that leaves out columns though
    the policy gives `EVERY_COLUMN`, and a forward that leaves out a column which predicts an open
    position. Columns that were never computed are added by the engine. If a policy gives
    `EXACT_REPLAY` wrongly, `SelfVerify` may change tokens; if it gives `LOGITS_OF_COMMITTED`
    wrongly, a sampler that needs the model's logits at committed tokens is shown certainty.

    Concrete policies are frozen dataclasses without state whose repr is their configuration.
    """

    @property
    def needs_kv_cache(self) -> bool:
        """True unless the policy gives `EVERY_COLUMN`; not to be overridden."""
        return Fact.EVERY_COLUMN not in self.gives

    @property
    def reads_history(self) -> bool:
        """True if the engine calls `numbers`; only a policy around another one overrides this."""
        return type(self).numbers is not CachePolicy.numbers

    def numbers(self, canvas: Canvas, history: History, shift: int) -> Int[Tensor, "B N"] | None:
        """Returns the integers that `columns_to_compute` reads for each row in the next round.

        Called after each round if `reads_history`. The host reads the numbers together with
        everything else that it reads once a round.

        Args:
            canvas: The rows after the round.
            history: Which columns were computed so far, and when.
            shift: As `CacheQuery.shift`.
        """
        return None

    def hidden(self, query: CacheQuery) -> Columns:
        """Returns columns that this forward neither computes nor attends to: none or one range."""
        return ()

    @abstractmethod
    def columns_to_compute(self, query: CacheQuery) -> Columns:
        """Returns the columns to compute, as ranges in ascending order.

        Every column that predicts an open position is among them. Columns that the row has never
        computed are added by the engine, unless they are hidden. A column that predicts a settled
        position may be left out: the sampler then sees certainty about the token in place.
        """


@dataclass(frozen=True)
class NoCache(CachePolicy):
    """Computes every column at every forward: exact, and the reference of all other policies."""

    @property
    def gives(self) -> frozenset[Fact]:
        return RECOMPUTED | {Fact.EVERY_COLUMN, Fact.EXACT_REPLAY}

    def columns_to_compute(self, query: CacheQuery) -> Columns:
        return columns((0, query.end))


def refreshes(forwards: int, every: int) -> bool:
    """Returns whether the block's next forward computes everything: the first, and each `every`-th.

    Args:
        forwards: Forwards of the block so far.
        every: 0: only the first.
    """
    return forwards % every == 0 if every else forwards == 0
