"""Rows of token ids for training: drawn afresh, or from a pool that worker processes refresh."""

import queue
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch
from jaxtyping import Int, Int16
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

Pair = tuple[Sequence[int], Sequence[int]]
"""Token ids of a prompt and of its answer, without the EOS that ends it."""

CHUNK_ROWS = 2048


@dataclass(frozen=True)
class Kind:
    """Examples that share a width, and how many of them a step gets.

    Attributes:
        name: Of the examples, part of their seed.
        draw: Draws one example; a function of the generator's state.
        prompt_length: Columns of the prompt, left-padded with EOS.
        gen_lengths: Answer lengths in tokens, EOS padding included; each step draws one of them.
        num_rows: Rows in a step that has any.
        period: Every how many steps there are any.
    """

    name: str
    draw: Callable[[random.Random], Pair]
    prompt_length: int
    gen_lengths: tuple[int, ...]
    num_rows: int
    period: int = 1

    def __post_init__(self) -> None:
        if self.prompt_length < 1 or self.num_rows < 1 or self.period < 1:
            raise ValueError(
                "prompt_length, num_rows and period are at least 1, got "
                f"{self.prompt_length}, {self.num_rows} and {self.period}."
            )
        if not self.gen_lengths or min(self.gen_lengths) < 1:
            raise ValueError(f"gen_lengths are one or more lengths, got {self.gen_lengths}.")

    @property
    def width(self) -> int:
        """Columns of a stored row."""
        return self.prompt_length + max(self.gen_lengths)


@dataclass(frozen=True)
class Batch:
    """Prompts and answers of one kind in one step.

    Attributes:
        tokens: Prompts, left-padded with EOS, then answers, padded with EOS.
        pads: Columns of left padding.
        gen_length: Columns of the answer.
    """

    tokens: Int[Tensor, "B L"]
    pads: Int[Tensor, " B"]
    gen_length: int

    @property
    def start(self) -> int:
        """Column of answer position 0."""
        return self.tokens.shape[1] - self.gen_length


class Rows(ABC):
    """Where the rows of a step come from."""

    @abstractmethod
    def draw(self, kind: Kind, step: int, device: torch.device) -> Int[Tensor, "B L"]:
        """Returns `kind.num_rows` rows of `kind.width` tokens."""


def make_rows(kind: Kind, num_rows: int, eos_id: int, seed: str) -> Int16[Tensor, "B L"]:
    """Draws rows: a left-padded prompt, then an answer with EOS up to the longest gen_length.

    Raises:
        ValueError: If an example does not fit the widths of its kind, or contains `eos_id`.
    """
    rng = random.Random(seed)
    rows = np.full((num_rows, kind.width), eos_id, dtype=np.int16)
    room = min(kind.gen_lengths)
    for row in rows:
        prompt, answer = kind.draw(rng)
        if not 0 < len(prompt) <= kind.prompt_length or len(answer) >= room:
            raise ValueError(
                f"{kind.name} examples have prompts of 1 to {kind.prompt_length} tokens and "
                f"answers of at most {room - 1}, got {len(prompt)} and {len(answer)}. "
                "Raise prompt_length or gen_lengths."
            )
        if eos_id in prompt or eos_id in answer:
            raise ValueError(f"Examples do not contain the EOS id {eos_id}, got {kind.name} ones.")
        row[kind.prompt_length - len(prompt) : kind.prompt_length] = prompt
        row[kind.prompt_length : kind.prompt_length + len(answer)] = answer
    return torch.from_numpy(rows)


def make_batch(kind: Kind, rows: Int[Tensor, "B L"], step: int, *, eos_id: int, seed: int) -> Batch:
    """Cuts rows to one of the kind's answer lengths, the same for all; columns of pads go."""
    gen_length = random.Random(f"{seed};{kind.name};{step};length").choice(kind.gen_lengths)
    pads = (rows[:, : kind.prompt_length] == eos_id).long().cumprod(-1).sum(-1)
    # On a GPU, reading the least padding would cost a synchronisation and new shapes each step.
    spare = 0 if rows.is_cuda else int(pads.min())
    return Batch(rows[:, spare : kind.prompt_length + gen_length], pads - spare, gen_length)


@dataclass(frozen=True)
class FreshRows(Rows):
    """Draws every row anew, in this process; a step's rows depend on seed and step alone.

    Attributes:
        eos_id: Token that pads prompts and answers.
        seed: Of the examples.
    """

    eos_id: int
    seed: int = 0

    def draw(self, kind: Kind, step: int, device: torch.device) -> Int[Tensor, "B L"]:
        """Returns the rows of a step."""
        rows = make_rows(kind, kind.num_rows, self.eos_id, f"{self.seed};{kind.name};{step}")
        return rows.long().to(device)


class PooledRows(Rows):
    """Draws rows from a pool on the device, which worker processes keep renewing.

    Rows are used more than once if the device is faster than the workers. Which rows a step gets
    depends on timing, so runs differ.

    Args:
        kinds: What to draw.
        eos_id: Token that pads prompts and answers.
        num_workers: Worker processes, at least 1; they start at once.
        capacity: Rows kept of each kind.
        ready: Rows of a kind that must exist before the first is used.
        seed: Of the examples; resumed runs want another one.
    """

    def __init__(
        self,
        kinds: Sequence[Kind],
        *,
        eos_id: int,
        num_workers: int,
        capacity: int = 2_000_000,
        ready: int = 8_192,
        seed: str = "0",
    ) -> None:
        if num_workers < 1:
            raise ValueError(
                f"num_workers must be at least 1, got {num_workers}; else use FreshRows."
            )
        self.num_made = 0
        self._ready = min(ready, capacity)
        self._capacity = capacity
        self._pools: dict[str, Tensor] = {}
        self._counts = {kind.name: 0 for kind in kinds}
        self._generator: torch.Generator | None = None
        self._fresh: queue.Queue[tuple[str, Tensor]] = queue.Queue(maxsize=8 * num_workers)
        self._closed = threading.Event()
        loader = DataLoader(
            _Chunks(tuple(kinds), eos_id, seed),
            batch_size=None,
            num_workers=num_workers,
            prefetch_factor=2,
            persistent_workers=True,
            worker_init_fn=_use_one_thread,
        )
        self._thread = threading.Thread(target=self._receive, args=(iter(loader),), daemon=True)
        self._thread.start()

    def draw(self, kind: Kind, step: int, device: torch.device) -> Int[Tensor, "B L"]:
        """Returns rows of the pool, after putting in what the workers have made by now."""
        while self._counts[kind.name] < self._ready:
            self._put(*self._fresh.get(), device)
        # Bounded: a step must not turn into unpacking.
        for _ in range(min(4, self._fresh.qsize())):
            self._put(*self._fresh.get(), device)
        if self._generator is None:
            self._generator = torch.Generator(device).manual_seed(step)
        filled = min(self._counts[kind.name], self._capacity)
        picked = torch.randint(filled, (kind.num_rows,), generator=self._generator, device=device)
        return self._pools[kind.name][picked].long()

    def close(self) -> None:
        """Stops the workers."""
        self._closed.set()
        while self._thread.is_alive():
            while not self._fresh.empty():
                self._fresh.get()
            self._thread.join(timeout=0.1)

    def _put(self, name: str, rows: Int16[Tensor, "B L"], device: torch.device) -> None:
        if name not in self._pools:
            size = (self._capacity, rows.shape[1])
            self._pools[name] = torch.zeros(size, dtype=torch.int16, device=device)
        start = self._counts[name] % self._capacity
        rows = rows[: self._capacity - start]
        self._pools[name][start : start + len(rows)] = rows.to(device)
        self._counts[name] += len(rows)
        self.num_made += len(rows)

    def _receive(self, chunks: Iterator[tuple[str, Tensor]]) -> None:
        for chunk in chunks:
            self._fresh.put(chunk)
            if self._closed.is_set():
                return


class _Chunks(IterableDataset[tuple[str, Tensor]]):
    """An endless stream of rows; the workers of a loader take turns with its chunks."""

    def __init__(self, kinds: tuple[Kind, ...], eos_id: int, seed: str) -> None:
        self._kinds = kinds
        self._eos_id = eos_id
        self._seed = seed

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        worker = get_worker_info()
        assert worker is not None
        largest = max(kind.num_rows / kind.period for kind in self._kinds)
        for index in count(worker.id, worker.num_workers):
            for kind in self._kinds:
                num_rows = round(CHUNK_ROWS * kind.num_rows / kind.period / largest)
                seed = f"{self._seed};{kind.name};{index}"
                yield kind.name, make_rows(kind, max(1, num_rows), self._eos_id, seed)


def _use_one_thread(_: int) -> None:
    torch.set_num_threads(1)
