"""Exchange of values between the processes of one launch, on the CPU."""

from datetime import timedelta
from typing import TypeVar

import torch.distributed

from eval.runs.settings import ALONE, Place

Value = TypeVar("Value")

# Processes wait for the longest answers; launchers end all processes when one fails.
_PATIENCE = timedelta(days=7)


class Ranks:
    """The processes of `accelerate launch`, `torchrun` or the like, or this one alone.

    All processes make the same calls in the same order. `place` says which of them this is.
    """

    def __init__(self, place: Place = ALONE) -> None:
        self.place = place
        self._owns = place.world_size > 1 and not torch.distributed.is_initialized()
        self._group = None
        if self._owns:
            torch.distributed.init_process_group(
                "gloo", rank=place.rank, world_size=place.world_size, timeout=_PATIENCE
            )
        if place.world_size > 1:
            # A group that was there before may be for devices only.
            self._group = torch.distributed.new_group(backend="gloo", timeout=_PATIENCE)

    def all(self, value: Value) -> list[Value]:
        """Returns the values of all processes, which must be picklable, in order of rank."""
        values = [value] * self.place.world_size
        if self._group is not None:
            torch.distributed.all_gather_object(values, value, group=self._group)
        return values

    def close(self) -> None:
        """Ends the group."""
        if self._owns:
            torch.distributed.destroy_process_group()
        self._group, self._owns = None, False
