"""The contract between the engine and a block schedule: which positions are open now."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from jaxtyping import Int
from torch import Tensor

from dllm_decode.core.canvas import Canvas
from dllm_decode.core.model import MaskPredictor
from dllm_decode.core.rows import Opening, Row
from samplers.base import Decision
from samplers.facts import Fact, PlugIn
from samplers.view import View


class BlockSchedule(PlugIn, ABC):
    """Decides which unsettled positions of each row are open, hence may be settled now.

    The host decides, row by row, from whole numbers. Concrete schedules are frozen dataclasses
    whose repr is their configuration. A schedule that must remember something on the device keeps
    it in `state.blocks_state`: `None`, a tensor, or a NamedTuple of tensors, batch axis first.

    Attributes:
        block_length: Tokens per block; `None`: as `DecodeConfig.block_length`.
    """

    block_length: int | None = None

    @property
    def needs(self) -> frozenset[Fact]:
        """Facts that the model and the verifier must give; none if this gives `WHOLE_BLOCKS`.

        Override this without `SEES_BOTH_WAYS` if the schedule's blocks end only where the blocks of
        a block-causal model end. Add `SEES_BOTH_WAYS` to a schedule that gives `WHOLE_BLOCKS` if
        its blocks may cross the end of a model's block: nothing else refuses such a model.
        """
        if Fact.WHOLE_BLOCKS in self.gives:
            return frozenset()
        return frozenset({Fact.ONE_STEP_A_FORWARD, Fact.SEES_BOTH_WAYS})

    def check(self, model: MaskPredictor) -> None:
        """Raises ValueError if the schedule cannot serve this model; by default it always can."""

    def window_length(self, block_length: int, answer_length: int) -> int:
        """Returns the columns of the sampler's window: a block, unless overridden.

        No `Opening.phase` may have more columns.

        Args:
            block_length: Tokens per block.
            answer_length: Columns from a row's first block to its end, at most.
        """
        return block_length

    def numbers(self, canvas: Canvas, block_length: int, state: Any) -> Int[Tensor, "B N"] | None:
        """Returns the integers that `opening` reads for each row, as `row.numbers.blocks`.

        The host reads the numbers together with everything else that it reads once a round.

        Args:
            canvas: The rows after a round, or before their first one.
            block_length: Tokens per block.
            state: The schedule's state.
        """
        return None

    @abstractmethod
    def opening(self, row: Row, block_length: int, shift: int) -> Opening:
        """Returns the columns that are open in one row in the next round.

        At least one of the row's unsettled positions must be open.

        Args:
            row: How far the row has come; `row.opening` is the opening of the last round,
                `CLOSED` before the row's first round.
            block_length: Tokens per block.
            shift: Columns from a column to the one that its logits predict, 0 or 1.
        """

    def narrowed(self, view: View, openings: Sequence[Opening], state: Any) -> tuple[View, Any]:
        """Returns the view with the positions that stay open given its logits, and the new state.

        At least one position of every row stays eligible. By default nothing changes.

        Args:
            view: The view before the schedule has read its logits.
            openings: The opening of each of its rows.
            state: The schedule's state; `None` before the decode's first round. Rows that join
                later begin with zeros.
        """
        return view, state

    def with_commits(self, view: View, decision: Decision, openings: Sequence[Opening]) -> Decision:
        """Returns the decision plus the commits of the schedule itself; by default none."""
        return decision


def block_of(row: Row, block_length: int) -> tuple[int, int]:
    """Returns the block of a row's first unsettled column; it never ends after `row.end`.

    Args:
        row: The row.
        block_length: Tokens of each block, counted from `row.blocks_start`.
    """
    start = row.first_unsettled - (row.first_unsettled - row.blocks_start) % block_length
    return start, min(start + block_length, row.end)
