"""The loss of a training, and the batches of a step."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

BatchT = TypeVar("BatchT")


class Objective(ABC, Generic[BatchT]):
    """A model, of which all that requires gradients is trained, and its loss."""

    model: nn.Module

    @abstractmethod
    def loss(self, batch: BatchT, generator: torch.Generator) -> Float[Tensor, ""]:
        """Returns the mean loss of a batch, in nats; random only by the generator."""


@dataclass(frozen=True)
class Part(Generic[BatchT]):
    """One forward of a step on one process.

    Attributes:
        batch: Given to the objective.
        key: Of the noise of the loss, another one for each forward of a run.
        weight: Of its loss in the step.
        num_rows: Samples that it counts as.
    """

    batch: BatchT
    key: str
    weight: float
    num_rows: int


class Source(ABC, Generic[BatchT]):
    """Where the batches of a run come from."""

    @abstractmethod
    def parts(self, step: int, rank: int, world_size: int) -> Sequence[Part[BatchT]]:
        """Returns the forwards of a step on one of several processes.

        They depend on the arguments alone, so that a run that was killed goes on as it would have.
        """
