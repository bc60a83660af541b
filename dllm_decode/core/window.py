"""The window: the columns of each row that a sampler sees."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dllm_decode.core.canvas import Canvas


@dataclass(frozen=True, eq=False)
class Window:
    """Consecutive columns of each row, equally many, from a start of the row's own.

    Attributes:
        starts: First column of each row.
        width: Columns of each row, W.
        index: Columns of the window; `None` if a slice serves, because all rows start at one
            column.
        offsets: For each column of the canvas its offset in the window; arbitrary if outside.
        inside: Columns of the canvas that are in the window.
        open: Columns of the window that may be settled now, if they are unsettled; `None`: all.
    """

    starts: tuple[int, ...]
    width: int
    index: Int[Tensor, "B W"] | None = None
    offsets: Int[Tensor, "B L"] | None = None
    inside: Bool[Tensor, "B L"] | None = None
    open: Bool[Tensor, "_ W"] | None = None

    @staticmethod
    def of(starts: Sequence[int], width: int, canvas: Canvas) -> "Window":
        """Returns a window; columns after the canvas' last one are read as that one."""
        device, last = canvas.tokens.device, canvas.width - 1
        if len(set(starts)) == 1 and starts[0] + width <= canvas.width:
            return Window(tuple(starts), width)
        at = torch.tensor(starts, device=device)[:, None]
        index = (at + torch.arange(width, device=device)).clamp(max=last)
        offsets = torch.arange(canvas.width, device=device) - at
        inside = (offsets >= 0) & (offsets < width)
        return Window(tuple(starts), width, index, offsets.clamp(0, width - 1), inside)

    @property
    def starts_on_device(self) -> int | Int[Tensor, " B"]:
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
        # overwrite the canvas' last one.
        is_new = where.gather(1, self.offsets) & self.inside
        found = new if isinstance(new, bool) else new.gather(1, self.offsets)
        return torch.where(is_new, found, values)

    def with_open(self, bounds: Sequence[tuple[int, int]], device: torch.device) -> "Window":
        """Returns the window in which the columns between bounds of each row are open."""
        own = [(a - at, b - at) for (a, b), at in zip(bounds, self.starts, strict=True)]
        own = own[:1] if len(set(own)) == 1 else own
        offsets, limits = torch.arange(self.width, device=device), torch.tensor(own, device=device)
        return replace(self, open=(offsets >= limits[:, :1]) & (offsets < limits[:, 1:]))
