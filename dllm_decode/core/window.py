"""Windows: consecutive columns of each row."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dllm_decode.core.canvas import Canvas
from dllm_decode.core.sending import send


@dataclass(frozen=True, eq=False)
class Window:
    """Consecutive columns of each row, equally many, from a start of the row's own.

    Attributes:
        starts: First column of each row.
        width: Columns of each row, W.
        open: Columns of the window that may be settled now, if they are unsettled.
        index: Columns of the window; `None`: a slice serves, because all rows start at the
            same column.
        offsets: For each column of the canvas its offset in the window; arbitrary if outside.
        inside: Columns of the canvas that are in the window.
    """

    starts: tuple[int, ...]
    width: int
    open: Bool[Tensor, "_ W"]
    index: Int[Tensor, "B W"] | None = None
    offsets: Int[Tensor, "B L"] | None = None
    inside: Bool[Tensor, "B L"] | None = None

    @staticmethod
    def of(starts: Sequence[int], width: int, canvas: Canvas) -> "Window":
        """Returns an open window; columns after the canvas' last one repeat the last."""
        device, last = canvas.tokens.device, canvas.width - 1
        is_open = _between(((0, width),), width, device)
        if len(set(starts)) == 1 and starts[0] + width <= canvas.width:
            return Window(tuple(starts), width, is_open)
        firsts = send(starts, device)[:, None]
        index = (firsts + torch.arange(width, device=device)).clamp(max=last)
        offsets = torch.arange(canvas.width, device=device) - firsts
        inside = (offsets >= 0) & (offsets < width)
        return Window(tuple(starts), width, is_open, index, offsets.clamp(0, width - 1), inside)

    @property
    def first_columns(self) -> int | Int[Tensor, " B"]:
        """First column of each row; one number if a slice serves."""
        return self.starts[0] if self.index is None else self.index[:, 0]

    def part(self, values: Tensor) -> Tensor:
        """Returns the window's part of values of every column."""
        if self.index is None:
            return values[:, self.starts[0] : self.starts[0] + self.width]
        return values.gather(1, self.index)

    def put(self, values: Tensor, where: Bool[Tensor, "B W"], new: Tensor | bool) -> Tensor:
        """Returns values of every column, in which some columns of the window have new ones."""
        if self.offsets is None or self.inside is None:
            written = values.clone()
            part = written[:, self.starts[0] : self.starts[0] + self.width]
            part.copy_(torch.where(where, new, part))
            return written
        # Gathered, not scattered: if a window ends after the canvas, its further columns must not
        # overwrite the canvas' last column.
        is_new = where.gather(1, self.offsets) & self.inside
        new_values = new if isinstance(new, bool) else new.gather(1, self.offsets)
        return torch.where(is_new, new_values, values)

    def with_open(self, bounds: Sequence[tuple[int, int]], device: torch.device) -> "Window":
        """Returns the window in which the columns between bounds of each row are open."""
        limits = tuple(
            (a - first, b - first) for (a, b), first in zip(bounds, self.starts, strict=True)
        )
        limits = limits[:1] if len(set(limits)) == 1 else limits
        return replace(self, open=_between(limits, self.width, device))


@lru_cache(maxsize=256)
def _between(
    limits: tuple[tuple[int, int], ...], width: int, device: torch.device
) -> Bool[Tensor, "_ W"]:
    """Returns which offsets are between two limits of each row; few windows differ in these."""
    offsets = torch.arange(width, device=device)
    bounds = send(limits, device)
    return (offsets >= bounds[:, :1]) & (offsets < bounds[:, 1:])
