"""Exchange of values between the processes of one launch, on the CPU."""

from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed
from jaxtyping import Shaped
from torch import Tensor

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

    def all_gather(self, tensor: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
        """Returns every process's tensor, concatenated in order of rank."""
        if self._group is None:
            return tensor
        own = torch.atleast_1d(tensor.cpu())
        parts = [torch.empty_like(own) for _ in range(self.place.world_size)]
        torch.distributed.all_gather(parts, own, group=self._group)
        return torch.cat(parts)

    def gather(self, value: Value, to: int = 0) -> list[Value] | None:
        """Returns every process's picklable value to one of them, and None to the others."""
        if self._group is None:
            return [value]
        is_there = self.place.rank == to
        values: list[Value] | None = [value] * self.place.world_size if is_there else None
        torch.distributed.gather_object(value, values, dst=to, group=self._group)
        return values

    def barrier(self) -> None:
        """Waits until every process is here."""
        if self._group is not None:
            torch.distributed.barrier(group=self._group)

    def close(self) -> None:
        """Ends the group."""
        if self._owns:
            torch.distributed.destroy_process_group()
        self._group, self._owns = None, False
