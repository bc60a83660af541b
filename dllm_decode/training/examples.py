"""A loss, and the batches of a step: rows of token ids, drawn afresh for each step."""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from samplers.checks import require_count

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
class Kind:
    """Examples that share a width, and how many of them a step gets.

    Attributes:
        name: Name of the examples, part of their seed.
        draw: Draws one example; a function of the generator's state.
        prompt_length: Columns of the prompt, left-padded with EOS.
        gen_lengths: Answer lengths in tokens, EOS padding included; each step draws one of them.
        num_rows: Rows of a step.
    """

    name: str
    draw: Callable[[random.Random], Pair]
    prompt_length: int
    gen_lengths: tuple[int, ...]
    num_rows: int

    def __post_init__(self) -> None:
        for name in ("prompt_length", "num_rows"):
            require_count(name, vars(self)[name], 1)
        if not self.gen_lengths or min(self.gen_lengths) < 1:
            raise ValueError(f"gen_lengths are one or more lengths, got {self.gen_lengths}.")

    def pairs(self, seed: str, eos_id: int) -> list[Pair]:
        """Draws the examples of a step; ValueError if one does not fit, or contains `eos_id`."""
        rng, room = random.Random(seed), min(self.gen_lengths)
        pairs = [self.draw(rng) for _ in range(self.num_rows)]
        for prompt, answer in pairs:
            if not 0 < len(prompt) <= self.prompt_length or len(answer) >= room:
                raise ValueError(
                    f"{self.name} examples have prompts of 1 to {self.prompt_length} tokens and "
                    f"answers of at most {room - 1}, got {len(prompt)} and {len(answer)}. "
                    "Raise prompt_length or gen_lengths."
                )
            if eos_id in prompt or eos_id in answer:
                raise ValueError(
                    f"Examples do not contain the EOS id {eos_id}, got {self.name} ones."
                )
        return pairs


@dataclass(frozen=True)
class Batch:
    """Prompts and answers of one kind in one step.

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


def lay_out(pairs: Sequence[Pair], gen_length: int, eos_id: int, *, start: int = 0) -> Batch:
    """Lays out prompts, left-padded, and answers, continued with EOS.

    An answer may end in EOS. Prompts have `start` columns, or as many as the longest prompt if it
    has more.

    Raises:
        ValueError: If an answer is longer than `gen_length`.
    """
    longest = max(len(answer) for _, answer in pairs)
    if longest > gen_length:
        raise ValueError(
            f"gen_length must be at least {longest}, the length of the longest answer, got "
            f"{gen_length}."
        )
    start = max(start, *(len(prompt) for prompt, _ in pairs))
    tokens = np.full((len(pairs), start + gen_length), eos_id)
    for row, (prompt, answer) in zip(tokens, pairs, strict=True):
        row[start - len(prompt) : start] = prompt
        row[start : start + len(answer)] = answer
    pads = torch.tensor([start - len(prompt) for prompt, _ in pairs])
    return Batch(torch.from_numpy(tokens), pads, gen_length)


@dataclass(frozen=True)
class KindRows(Source[Batch]):
    """Draws every row anew; `Kind` describes the rows of a step.

    The losses of the kinds are weighted by their share of the rows. Rows depend on the seed and on
    the number of the step alone.

    Attributes:
        kinds: Kinds of examples to draw; each step has all of them.
        eos_id: Token that pads prompts and answers.
        device: Device of the batches.
        seed: Seed of the examples.
    """

    kinds: Sequence[Kind]
    eos_id: int
    device: torch.device | str = "cpu"
    seed: int = 0

    def parts(self, step: int, rank: int, world_size: int) -> list[Part[Batch]]:
        """Returns a batch of each kind."""
        number = step * world_size + rank
        num_rows, parts = sum(kind.num_rows for kind in self.kinds), []
        for kind in self.kinds:
            pairs = kind.pairs(f"{self.seed};{kind.name};{number}", self.eos_id)
            rng = random.Random(f"{self.seed};{kind.name};{step};length")
            # On a GPU new shapes are slow.
            start = kind.prompt_length if torch.device(self.device).type == "cuda" else 0
            batch = lay_out(pairs, rng.choice(kind.gen_lengths), self.eos_id, start=start)
            key, share = f"masks;{kind.name};{number}", kind.num_rows / num_rows
            parts.append(Part(batch.to(self.device), key, share, kind.num_rows))
        return parts
