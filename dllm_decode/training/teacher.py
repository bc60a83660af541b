"""What a distilled model learns from: a teacher's answers, and the order of their tokens."""

import random
from collections.abc import Sequence
from dataclasses import replace
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
        ranks: Of each token of the answer in the order of commits, from 0.
        score: 1 for a right answer.
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    ranks: tuple[int, ...]
    score: float


class Lessons(Source[Batch]):
    """A teacher's answers, each once an epoch, in an order of its own.

    Rows and masks of a forward depend on the seed and on its number in the whole run alone.

    Args:
        demonstrations: What is learned, at least one; the same on every process.
        gen_length: Columns of the answers.
        eos_id: Token that pads prompts and answers.
        num_rows: Rows of a forward, on each process.
        num_forwards: Forwards of a step, on each process; gradients are averaged.
        device: Of the batches.
        seed: Of the order of rows.

    Raises:
        ValueError: If a number is out of range, or there are no demonstrations.
    """

    def __init__(
        self,
        demonstrations: Sequence[Demonstration],
        *,
        gen_length: int,
        eos_id: int,
        num_rows: int = 1,
        num_forwards: int = 8,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        if not demonstrations:
            raise ValueError("Answers to learn from must be at least one, got none.")
        require_count("num_rows", num_rows, 1)
        require_count("num_forwards", num_forwards, 1)
        self._demonstrations = demonstrations
        self._gen_length = gen_length
        self._eos_id = eos_id
        self._num_rows = num_rows
        self._num_forwards = num_forwards
        self._device = device
        self._seed = seed
        self._order = lru_cache(maxsize=2)(self._order_of)

    def parts(self, step: int, rank: int, world_size: int) -> list[Part[Batch]]:
        """Returns the next rows of the order, laid out."""
        num_all, found = len(self._demonstrations), []
        first = (step * world_size + rank) * self._num_forwards
        for number in range(first, first + self._num_forwards):
            places = range(number * self._num_rows, (number + 1) * self._num_rows)
            rows = [self._order(place // num_all)[place % num_all] for place in places]
            pairs = [(one.prompt, one.answer) for one in rows]
            batch = lay_out(pairs, self._gen_length, self._eos_id)
            ranks = torch.full((len(rows), self._gen_length), self._gen_length)
            for row, one in zip(ranks, rows, strict=True):
                row[: len(one.ranks)] = torch.tensor(one.ranks)
            batch = replace(batch, ranks=ranks).to(self._device)
            found.append(Part(batch, f"masks;{number}", 1 / self._num_forwards, self._num_rows))
        return found

    def _order_of(self, epoch: int) -> Sequence[Demonstration]:
        order = list(self._demonstrations)
        random.Random(f"{self._seed};order;{epoch}").shuffle(order)
        return order
