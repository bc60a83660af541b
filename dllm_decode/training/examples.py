"""A loss, and the batches of a step: rows of token ids."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

BatchT = TypeVar("BatchT")


class Objective(ABC, Generic[BatchT]):
    """A model and its loss; all weights that require gradients are trained."""

    model: nn.Module

    @abstractmethod
    def loss(self, batch: BatchT, generator: torch.Generator) -> Float[Tensor, ""]:
        """Returns the mean loss of a batch, in nats; all its randomness is from the generator."""

    def advance(self, spent: float) -> None:  # most losses stay the same
        """Receives before each step the share of the run that is over, in [0, 1]."""


@dataclass(frozen=True)
class Part(Generic[BatchT]):
    """One forward of a step on one process.

    Attributes:
        batch: Given to the objective.
        key: Key of the noise of the loss, different for each forward of a run.
        weight: Weight of the forward's loss in the step.
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

        The forwards depend on the arguments alone, so that a killed run can go on unchanged.
        """


Pair = tuple[Sequence[int], Sequence[int]]
"""Token ids of a prompt and of its answer, without the EOS that ends it."""


@dataclass(frozen=True)
class Batch:
    """Prompts and answers of one forward.

    Attributes:
        tokens: Prompts, left-padded with EOS, then answers, padded with EOS.
        pads: Columns of left padding.
        gen_length: Columns of the answer.
        ranks: Place of each answer position in the order of a teacher's commits, from 0; positions
            after the answer have any greater number. `None`: there was no teacher.
    """

    tokens: Int[Tensor, "B L"]
    pads: Int[Tensor, " B"]
    gen_length: int
    ranks: Int[Tensor, "B G"] | None = None

    @property
    def start(self) -> int:
        """Column of answer position 0."""
        return self.tokens.shape[1] - self.gen_length

    @property
    def answers(self) -> Int[Tensor, "B G"]:
        """The tokens of the answers."""
        return self.tokens[:, self.start :]

    @property
    def in_row(self) -> Bool[Tensor, "B L"]:
        """True at columns that are not padding on the left."""
        return torch.arange(self.tokens.shape[1], device=self.pads.device) >= self.pads[:, None]

    @property
    def rotary_positions(self) -> Int[Tensor, "B L"]:
        """Columns counted from a row's first token; 0 in the padding."""
        columns = torch.arange(self.tokens.shape[1], device=self.pads.device)
        return (columns - self.pads[:, None]).clamp(min=0)

    def blocks(self, block_length: int) -> Int[Tensor, "B L"]:
        """Returns the block of each column; blocks begin at a row's first token."""
        return self.rotary_positions // block_length

    def ends(self, eos_ids: Sequence[int]) -> Int[Tensor, "B 1"]:
        """Returns the position of each answer's first EOS; without one, the last position."""
        is_end = torch.isin(self.answers, torch.tensor(eos_ids, device=self.tokens.device))
        return (~is_end).long().cumprod(-1).sum(-1, keepdim=True).clamp(max=self.gen_length - 1)

    def to(self, device: torch.device | str) -> "Batch":
        """Returns the batch on a device."""
        ranks = None if self.ranks is None else self.ranks.to(device)
        return Batch(self.tokens.to(device), self.pads.to(device), self.gen_length, ranks)


def lay_out(pairs: Sequence[Pair], gen_length: int, eos_id: int) -> Batch:
    """Lays out prompts, left-padded, and answers, continued with EOS.

    An answer may end in EOS. Prompts have as many columns as the longest prompt.

    Raises:
        ValueError: If an answer is longer than `gen_length`.
    """
    longest = max(len(answer) for _, answer in pairs)
    if longest > gen_length:
        raise ValueError(
            f"gen_length must be at least {longest}, the length of the longest answer, got "
            f"{gen_length}."
        )
    start = max(len(prompt) for prompt, _ in pairs)
    tokens = np.full((len(pairs), start + gen_length), eos_id)
    for row, (prompt, answer) in zip(tokens, pairs, strict=True):
        row[start - len(prompt) : start] = prompt
        row[start : start + len(answer)] = answer
    pads = torch.tensor([start - len(prompt) for prompt, _ in pairs])
    return Batch(torch.from_numpy(tokens), pads, gen_length)
