"""Decodes and scores the batches of one run that belong to this process."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

from dllm_decode import decode
from eval.failures import FAILURES
from eval.runs.answers import answer, said_of
from eval.runs.lines import Record, ScoredExample, append
from eval.runs.progress import Reporter
from eval.runs.provenance import now, package_commit
from eval.runs.records import Settings
from eval.runs.settings import Place, Run
from eval.tasks import Example

# Seeds are this far apart, so that no two rows of a run share their noise.
_BATCH_STRIDE = 1 << 32
_ROW_STRIDE = 1 << 20

# Examples that a process decodes first in each run do not count for its timings: kernels are
# chosen and memory is reserved then. d3LLM's number.
_NUM_WARM_UP = 10


class Checked(NamedTuple):
    """A run that can be decoded, with its examples and the settings that name it."""

    run: Run
    examples: Sequence[Example]
    settings: Settings


class Batch(NamedTuple):
    """A batch of a run: its number, and the ids of its examples that have no record yet."""

    number: int
    missing: frozenset[str]


class Worker:
    """Decodes the batches of one run that belong to this process."""

    def __init__(self, one: Checked, part: Path, reporter: Reporter, machine: str) -> None:
        """Takes a run, the file of its records, and the folder's note on this process."""
        self._run, self._examples, self._settings = one
        self._machine = machine
        self._num_begun = 0
        self._part = part
        self._reporter = reporter

    def work(self, done: Mapping[str, Record], place: Place, decoded: "Decoding") -> None:
        """Has the rest of this process's batches decoded, and keeps the records.

        `done` has the records of earlier runs by key.
        """
        keys = self.keys(place)
        self._reporter.begin(self.label, len(keys), [done[key] for key in keys if key in done])
        batches = (self._batch(index, done) for index in self._mine(place))
        for records in decoded(self, [batch for batch in batches if batch.missing]):
            self._keep(records)

    def keys(self, place: Place) -> list[str]:
        """Returns the keys of this process's examples, in the order in which they are decoded."""
        return [self._key(e) for index in self._mine(place) for e in self._rows(index)]

    def _mine(self, place: Place) -> range:
        return range(place.rank, self.num_batches, place.world_size)

    @property
    def label(self) -> str:
        """The setting in words, beginning with its parts."""
        seed = f" seed {self._settings.seed}" if self._settings.seed else ""
        return f"{' + '.join(self._settings.parts)}{seed} on {self._settings.task}"

    @property
    def settings_key(self) -> str:
        """Names the settings of the run in records."""
        return self._settings.key("")

    @property
    def num_batches(self) -> int:
        """How many batches there are."""
        return -(-len(self._examples) // self._run.batch_size)

    def finish_batch(self, index: int, done: dict[str, Record]) -> list[Record]:
        """Decodes what `done` lacks of a batch, adds it there, and returns the batch's records."""
        batch = self._batch(index, done)
        if batch.missing:
            records = self.decode(batch)
            self._keep(records)
            done |= {record["key"]: record for record in records}
        return [done[self._key(example)] for example in self._rows(index)]

    def decode(self, batch: Batch) -> list[Record]:
        """Decodes a batch, and returns the records that were missing."""
        rows = self._rows(batch.number)
        warm_up = self._num_begun < _NUM_WARM_UP
        self._num_begun += len(rows)
        seed = self._settings.seed + _BATCH_STRIDE * batch.number
        records = self._decode(rows, seed, warm_up=warm_up)
        return [record for record in records if record["example"] in batch.missing]

    def _keep(self, records: Sequence[Record]) -> None:
        append(self._part, records)
        self._reporter.add(records)

    def _batch(self, index: int, done: Mapping[str, Record]) -> Batch:
        missing = (e.id for e in self._rows(index) if self._key(e) not in done)
        return Batch(index, frozenset(missing))

    def _rows(self, index: int) -> Sequence[Example]:
        size = self._run.batch_size
        return self._examples[index * size : (index + 1) * size]

    def _key(self, example: Example) -> str:
        return self._settings.key(example.id)

    def _decode(self, examples: Sequence[Example], seed: int, *, warm_up: bool) -> list[Record]:
        """Decodes a batch; if that fails, each example alone."""
        try:
            config = replace(self._settings.decoding, seed=seed)
            answers = answer(self._run, examples, config, [self._reporter])
        except FAILURES as error:
            if isinstance(error, ValueError):
                self._refuse_misfit()
            if len(examples) > 1:
                return [
                    record
                    for i, example in enumerate(examples, start=1)
                    for record in self._decode([example], seed + i * _ROW_STRIDE, warm_up=warm_up)
                ]
            answers = [{"error": said_of(error)}]
        return [
            self._record(example, one, warm_up=warm_up)
            for example, one in zip(examples, answers, strict=True)
        ]

    def _refuse_misfit(self) -> None:
        """Raises the ValueError that these settings give whatever the prompt."""
        run = self._run
        decode(
            run.model, [[run.model.eos_ids[0]]], run.sampler, cache=run.cache,
            verifier=run.verifier, blocks=run.blocks, config=self._settings.decoding,
        )  # fmt: skip

    def _record(self, example: Example, found: ScoredExample, *, warm_up: bool) -> Record:
        return {
            "key": self._key(example),
            "settings": self.settings_key,
            "example": example.id,
            "sampler": self._settings.sampler,
            "cache": self._settings.cache,
            "verifier": self._settings.verifier,
            "blocks": self._settings.blocks,
            "git": package_commit(),
            "machine": self._machine,
            "date": now(),
            "primary": self._run.selection.task.primary,
            "prompt": example.turns()[-1]["content"],
            "target": example.target,
            "warm_up": warm_up,
            **found,
        }


Decoding: TypeAlias = Callable[[Worker, Sequence[Batch]], Iterator[list[Record]]]
"""Decodes batches of a worker's run, in any order, and yields the records of each."""


def in_turn(worker: Worker, batches: Sequence[Batch]) -> Iterator[list[Record]]:
    """Decodes batches in this process, one after another."""
    return map(worker.decode, batches)
