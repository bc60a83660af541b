"""The contract between the engine and a block schedule: which positions are open now."""

from abc import ABC
from collections.abc import Iterator
from typing import NamedTuple

from jaxtyping import Int
from torch import Tensor

from dllm_decode.canvas import Block, Canvas
from samplers.base import Decision
from samplers.view import View


class Reach(NamedTuple):
    """Where each row's open masks are, as caches and samplers are told.

    Attributes:
        starts: First position of the row's first block with open masks; the end of the region in a
            row without any.
        ends: Position behind its last such block; 0 in a row without any.
    """

    starts: Int[Tensor, " B"]
    ends: Int[Tensor, " B"]


class Opened(NamedTuple):
    """A canvas and a view of it in which a schedule has said what is open.

    Attributes:
        canvas: With the positions that are open.
        view: Of the same canvas: masks that are not open are left out.
    """

    canvas: Canvas
    view: View


class BlockSchedule(ABC):  # noqa: B024 - what it has for all is the usual schedule
    """Says which masked positions of each row are open, hence may be committed now.

    An answer is decoded in *phases*: ranges of positions that rows work on together. The window of
    a sampler is the phase, and its state lasts as long. Inside a phase a schedule may open parts of
    it for each row at the row's own pace.

    Concrete schedules are frozen dataclasses without state whose repr is their configuration. What
    a schedule remembers of a row stands in the canvas: `Canvas.opened` and `Canvas.due`.

    Attributes:
        block_length: Tokens per block; `None`: as `DecodeConfig.block_length`.
    """

    block_length: int | None = None

    @property
    def opens_parts(self) -> bool:
        """True if a phase may hold masks that are not open, for each row others."""
        return False

    @property
    def ends_anywhere(self) -> bool:
        """True if blocks may end where a model that attends in blocks has no end of a block."""
        return False

    def phases(self, canvas: Canvas, block_length: int, *, shift: int) -> Iterator[Block]:
        """Splits the answer region into phases, from left to right: blocks unless overridden.

        Args:
            canvas: The rows.
            block_length: Tokens per block.
            shift: Columns from a column to the one that its logits predict, 0 or 1.
        """
        return canvas.blocks(block_length)

    def opened(self, canvas: Canvas, block_length: int, *, stops_at_eos: bool) -> Canvas:
        """Returns the canvas with what is open in the next step, before each step of a phase.

        Every running row with masks in the phase has an open one. Unless overridden, all are open.

        Args:
            canvas: The rows, with what was open in the last step; at first `opened` is `None`.
            block_length: Tokens per block.
            stops_at_eos: Whether an answer ends with its first EOS.
        """
        return canvas

    def reach(self, canvas: Canvas, block_length: int) -> Reach | None:
        """Returns where open masks are; `None`: anywhere in the phase."""
        return None

    def restarts(self, before: Block, after: Block) -> bool:
        """Says whether a row's reach changes because a block was opened or finished.

        Then a cache policy counts the row's forwards anew, and most compute everything. So it is
        whenever the reach changes, unless overridden.
        """
        return before != after

    def chosen(self, canvas: Canvas, view: View) -> Opened:
        """Says what is open once the logits are known, before the sampler sees them.

        At least one open mask stays in every running row. Nothing changes unless overridden.
        """
        return Opened(canvas, view)

    def completed(
        self, canvas: Canvas, view: View, decision: Decision, block_length: int
    ) -> Decision:
        """Returns a decision with what the schedule itself commits: nothing unless overridden."""
        return decision
