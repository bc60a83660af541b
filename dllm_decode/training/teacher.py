"""The data of a distillation: a teacher's answers, and the order of their tokens."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import msgspec
import torch

from dllm_decode.training.examples import Batch, Part, Source, lay_out
from samplers.checks import require_count


class Demonstration(msgspec.Struct, forbid_unknown_fields=True):
    """An answer of the teacher.

    Attributes:
        prompt: Token ids of the prompt.
        answer: Token ids of the answer, with the EOS that ends it if one does.
        ranks: Place of each token of the answer in the order of commits, from 0.
        score: 1 for a right answer.
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    ranks: tuple[int, ...]
    score: float


@dataclass(frozen=True)
class Lessons(Source[Batch]):
    """A teacher's answers, each once an epoch, in a random order for each epoch.

    Rows and masks of a forward depend only on the seed and on the forward's number in the run.

    Attributes:
        demonstrations: At least one; the same on every process.
        gen_length: Columns of the answers.
        eos_id: Token that pads prompts and answers.
        num_rows: Rows of a forward, on each process.
        num_forwards: Forwards of a step, on each process; gradients are averaged.
        device: Device of the batches.
        seed: Seed of the order of rows.

    Raises:
        ValueError: If a number is out of range, or there are no demonstrations.
    """

    demonstrations: Sequence[Demonstration]
    gen_length: int
    eos_id: int
    num_rows: int = 1
    num_forwards: int = 8
    device: torch.device | str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.demonstrations:
            raise ValueError("Answers to learn from must be at least one, got none.")
        require_count("num_rows", self.num_rows, 1)
        require_count("num_forwards", self.num_forwards, 1)

    def parts(self, step: int, rank: int, world_size: int) -> list[Part[Batch]]:
        """Returns the next rows of the order, laid out."""
        num_all, parts = len(self.demonstrations), []
        first = (step * world_size + rank) * self.num_forwards
        for number in range(first, first + self.num_forwards):
            places = range(number * self.num_rows, (number + 1) * self.num_rows)
            indices = [
                _order(num_all, self.seed, place // num_all)[place % num_all] for place in places
            ]
            rows = [self.demonstrations[i] for i in indices]
            pairs = [(demonstration.prompt, demonstration.answer) for demonstration in rows]
            batch = lay_out(pairs, self.gen_length, self.eos_id)
            ranks = torch.full((len(rows), self.gen_length), self.gen_length)
            for row, demonstration in zip(ranks, rows, strict=True):
                row[: len(demonstration.ranks)] = torch.tensor(demonstration.ranks)
            batch = replace(batch, ranks=ranks).to(self.device)
            parts.append(Part(batch, f"masks;{number}", 1 / self.num_forwards, self.num_rows))
        return parts


@lru_cache(maxsize=2)
def _order(num_all: int, seed: int, epoch: int) -> Sequence[int]:
    order = list(range(num_all))
    random.Random(f"{seed};order;{epoch}").shuffle(order)
    return order
