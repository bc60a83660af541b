"""The contract between the engine and a block schedule: which positions are open now."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxtyping import Int
from torch import Tensor

from dllm_decode.core.canvas import Canvas
from dllm_decode.core.rows import Opening
from dllm_decode.models.base import MaskPredictor
from samplers.base import Decision
from samplers.checks import shown
from samplers.facts import Fact, PlugIn
from samplers.view import View


class Progress(NamedTuple):
    """How far a row has come, in columns of the row.

    Attributes:
        first: First column of the row's first block.
        end: First column that is not the row's.
        unsettled: First unsettled column.
        block_length: Tokens per block.
        shift: Columns from a column to the one that its logits predict, 0 or 1.
        stops_at_eos: True if the answer ends with its first EOS.
        numbers: As `BlockSchedule.numbers` returned them after the last round.
    """

    first: int
    end: int
    unsettled: int
    block_length: int
    shift: int
    stops_at_eos: bool
    numbers: tuple[int, ...]

    @property
    def block(self) -> tuple[int, int]:
        """The block of the first unsettled column: its first column, and the first after it."""
        start = self.unsettled - (self.unsettled - self.first) % self.block_length
        return start, min(start + self.block_length, self.end)


class BlockSchedule(PlugIn, ABC):
    """Decides which unsettled positions of each row are open, hence may be settled now.

    The host decides, row by row, from whole numbers. Concrete schedules are frozen dataclasses
    whose repr is their configuration. A schedule that must remember something on the device keeps
    it in `state.schedule`: `None`, a tensor, or a NamedTuple of tensors, batch axis first.

    Attributes:
        block_length: Tokens per block; `None`: as `DecodeConfig.block_length`.
    """

    block_length: int | None = None

    @property
    def needs(self) -> frozenset[Fact]:
        """Facts that the model and the verifier must give; none if this gives `WHOLE_BLOCKS`.

        A schedule whose blocks end only where the blocks of a block-causal model end overrides this
        without `SEES_BOTH_WAYS`.
        """
        if Fact.WHOLE_BLOCKS in self.gives:
            return frozenset()
        return frozenset({Fact.ONE_STEP_A_FORWARD, Fact.SEES_BOTH_WAYS})

    def check(self, model: MaskPredictor) -> None:
        """Raises ValueError if the schedule cannot serve this model; by default it always can."""

    def window_length(self, block_length: int, answer_length: int) -> int:
        """Returns the columns of the sampler's window: a block, unless overridden.

        Every `Opening.phase` has at most so many columns.

        Args:
            block_length: Tokens per block.
            answer_length: Columns from a row's first block to its end, at most.
        """
        return block_length

    def numbers(self, canvas: Canvas, block_length: int, state: Any) -> Int[Tensor, "B N"] | None:
        """Returns the integers that `opening` reads for each row, as `Progress.numbers`.

        The host reads the numbers together with everything else that it reads once a round.

        Args:
            canvas: The rows after a round, or before their first one.
            block_length: Tokens per block.
            state: The schedule's state.
        """
        return None

    @abstractmethod
    def opening(self, progress: Progress, last: Opening | None) -> Opening:
        """Returns the columns that are open in one row in the next round.

        At least one of the row's unsettled positions must be open.

        Args:
            progress: How far the row has come.
            last: The opening of the last round; `None` before the row's first round.
        """

    def chosen(self, view: View, openings: Sequence[Opening], state: Any) -> tuple[View, Any]:
        """Returns the view with the positions that are open given its logits, and the new state.

        At least one position of every row stays eligible. By default nothing changes.

        Args:
            view: The view before the schedule has read its logits.
            openings: The opening of each of its rows.
            state: The schedule's state; `None` before the decode's first round. Rows that join
                later begin with zeros.
        """
        return view, state

    def completed(self, view: View, decision: Decision, openings: Sequence[Opening]) -> Decision:
        """Returns the decision plus the commits of the schedule itself; by default none."""
        return decision


def require_numbers(numbers: object, num_rows: int, *, owner: object) -> None:
    """Raises RuntimeError unless `numbers` of a plug-in returned integers, some for each row."""
    if numbers is None:
        return
    if isinstance(numbers, Tensor):
        is_right = numbers.ndim == 2 and len(numbers) == num_rows
        if is_right and not numbers.is_floating_point():
            return
        got = f"{numbers.dtype} {tuple(numbers.shape)} for {num_rows} rows"
    else:
        got = f"{shown(numbers)} ({type(numbers).__name__})"
    raise RuntimeError(f"numbers of {owner!r} must return Int[B, N] or None, got {got}.")


def require_opening(opening: object, progress: Progress, *, owner: BlockSchedule) -> None:
    """Raises RuntimeError unless `opening` returned an `Opening` that opens something."""
    if not isinstance(opening, Opening):
        raise RuntimeError(
            f"opening of {owner!r} must return an Opening such as Opening.of_block(start, stop), "
            f"got {shown(opening)} ({type(opening).__name__})."
        )
    is_inside = progress.first <= opening.start < opening.stop <= progress.end
    if not is_inside or opening.stop <= progress.unsettled:
        raise RuntimeError(
            f"opening of {owner!r} must open at least one unsettled position, so columns of "
            f"[{progress.first}, {progress.end}) that end after {progress.unsettled}, got "
            f"{opening}."
        )
