"""The contract between the engine and a block schedule: which positions are open now."""

from abc import ABC
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from dllm_decode.canvas import Block, Canvas
from dllm_decode.models.base import MaskPredictor
from samplers.base import Decision
from samplers.checks import shown
from samplers.view import View

_NOWHERE = Block(0, 0)


class Opening(NamedTuple):
    """What is open in one row.

    Attributes:
        opened: Positions whose masks may be committed.
        reach: Positions outside which the row has no open mask, as caches are told; `None`: all of
            the phase.
        due: Blocks about which the schedule decides itself in the next step, see `Canvas.due`.
    """

    opened: Block
    reach: Block | None = None
    due: tuple[Block, ...] = ()


class Phase(NamedTuple):
    """What rows work on together.

    Attributes:
        block: Its positions.
        region_length: Positions of the whole answer region.
        block_length: Tokens per block.
        stops_at_eos: Whether an answer ends with its first EOS.
    """

    block: Block
    region_length: int
    block_length: int
    stops_at_eos: bool


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
    is open in a row is decided by the host, from a few numbers of the row and its last `Opening`;
    the tensors `Canvas.opened` and `Canvas.due` are made anew only when that changes.

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

    def check(self, model: MaskPredictor) -> None:  # noqa: B027 - most serve every model
        """Raises ValueError if it cannot serve this model; nothing unless overridden."""

    def phases(self, canvas: Canvas, block_length: int, *, shift: int) -> Iterator[Block]:
        """Splits the answer region into phases, from left to right: blocks unless overridden.

        Args:
            canvas: The rows.
            block_length: Tokens per block.
            shift: Columns from a column to the one that its logits predict, 0 or 1.
        """
        return canvas.blocks(block_length)

    def measured(self, canvas: Canvas, block_length: int) -> tuple[Int[Tensor, " B"], ...]:
        """Returns what `opening` must know of each row: nothing unless overridden.

        The host reads it together with all else that it reads once a step, so it is integers.
        """
        return ()

    def opening(self, measured: Sequence[int], last: Opening | None, phase: Phase) -> Opening:
        """Says what is open in one row, before each step; asked only if `opens_parts`.

        The row has masks in the phase, and at least one of them must be open.

        Args:
            measured: What `measured` returned, of this row.
            last: What was open in the last step; `None` before the row's first in the phase.
            phase: What is decoded.
        """
        return Opening(phase.block)

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


def require_overrides(schedule: BlockSchedule) -> None:
    """Raises ValueError if a schedule says what is open, but not that it does."""
    says_what = type(schedule).opening is not BlockSchedule.opening
    if says_what and not schedule.opens_parts:
        raise ValueError(
            f"opens_parts must be True in a schedule that overrides opening, got False from "
            f"{schedule!r}, whose opening would never be asked. Override opens_parts too, and "
            "phases if several blocks may be open at once."
        )


def require_measured(measured: object, num_rows: int, *, owner: BlockSchedule) -> None:
    """Raises RuntimeError unless `measured` returned integers, one of each row."""
    if not isinstance(measured, tuple):
        raise RuntimeError(_broken(owner, "measured", "a tuple of Int[B] tensors", measured))
    for part in measured:
        if not isinstance(part, Tensor):
            raise RuntimeError(_broken(owner, "measured", "a tuple of Int[B] tensors", part))
        if part.shape != (num_rows,) or part.is_floating_point():
            raise RuntimeError(
                f"measured of {owner!r} must return a tuple of Int[B] tensors, got one of "
                f"{part.dtype} {tuple(part.shape)} for {num_rows} rows."
            )


def require_opening(opening: object, *, owner: BlockSchedule) -> None:
    """Raises RuntimeError unless `opening` returned an `Opening` that opens something."""
    if not isinstance(opening, Opening) or not isinstance(opening.opened, Block):
        raise RuntimeError(_broken(owner, "opening", "an Opening such as Opening(block)", opening))
    parts = (opening.opened, opening.opened if opening.reach is None else opening.reach)
    if any(part.start >= part.end for part in parts):
        raise RuntimeError(
            f"opening of {owner!r} must open at least one position of a row that has masks left, "
            f"got {opening}."
        )


def _broken(owner: BlockSchedule, method: str, wanted: str, found: object) -> str:
    return (
        f"{method} of {owner!r} must return {wanted}, got {shown(found)} ({type(found).__name__})."
    )


def with_openings(canvas: Canvas, openings: Sequence[Opening]) -> Canvas:
    """Returns a canvas in which so much is open, row by row."""
    device = canvas.tokens.device
    due = zip_longest(*(opening.due for opening in openings), fillvalue=_NOWHERE)
    layers = [[opening.opened for opening in openings], *due]
    # All bounds at once: the host waits for what it sends to an accelerator.
    bounds = torch.tensor([[(b.start, b.end) for b in layer] for layer in layers], device=device)
    positions = torch.arange(canvas.region_length, device=device)
    marked = (positions >= bounds[..., :1]) & (positions < bounds[..., 1:])
    return canvas.with_opened(marked[0], marked[1:].any(0) if len(layers) > 1 else None)
