"""What is minimised."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dllm_decode.training.examples import Batch


class Objective(ABC):
    """A model and its loss.

    Attributes:
        model: The model that is trained.
        eos_id: Token that pads prompts and answers.
    """

    model: nn.Module
    eos_id: int

    @abstractmethod
    def loss(self, batch: Batch, generator: torch.Generator) -> Float[Tensor, ""]:
        """Returns the mean loss of a batch, in nats; random only by the generator."""
