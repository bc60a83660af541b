"""Decodes and scores the batches of one run that belong to this process."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

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


class Worker:
    """Decodes the batches of one run that belong to this process."""

    def __init__(
        self, run: Run, settings: Settings, part: Path, reporter: Reporter, machine: str
    ) -> None:
        """Takes a run.

        Args:
            run: What to decode.
            settings: What names it in the records.
            part: Where records go.
            reporter: Follows the progress.
            machine: Name of the folder's note on this process, see `Folder.note_machine`.
        """
        self._run = run
        self._machine = machine
        self._num_begun = 0
        self._settings = settings
        self._part = part
        self._reporter = reporter

    def work(self, examples: Sequence[Example], done: Mapping[str, Record], place: Place) -> None:
        """Decodes what is not done of this process's batches and appends the records.

        Args:
            examples: All examples of the run.
            done: Records of earlier runs by key.
            place: Which batches are this process's.
        """
        mine = range(place.rank, self.num_batches(examples), place.world_size)
        keys = [self._key(e) for index in mine for e in self._batch(examples, index)]
        finished = [done[key] for key in keys if key in done]
        self._reporter.begin(self.label, len(keys), finished)
        for index in mine:
            self.finish_batch(examples, index, done)

    @property
    def label(self) -> str:
        """The setting in words, what tells it apart first."""
        seed = f" seed {self._settings.seed}" if self._settings.seed else ""
        return f"{' + '.join(self._settings.parts)}{seed} on {self._settings.task}"

    def num_batches(self, examples: Sequence[Example]) -> int:
        """Returns how many batches there are."""
        return -(-len(examples) // self._run.batch_size)

    def finish_batch(
        self, examples: Sequence[Example], index: int, done: Mapping[str, Record]
    ) -> list[Record]:
        """Decodes a batch unless all of it is done; returns its records, in order.

        Args:
            examples: All examples of the run.
            index: Which batch.
            done: Records of earlier runs by key.
        """
        batch = self._batch(examples, index)
        missing = {e.id for e in batch if self._key(e) not in done}
        new: dict[str, Record] = {}
        if missing:
            seed = self._settings.seed + _BATCH_STRIDE * index
            warm_up = self._num_begun < _NUM_WARM_UP
            self._num_begun += len(batch)
            records = self._decode(batch, seed, warm_up=warm_up)
            new = {record["key"]: record for record in records if record["example"] in missing}
            append(self._part, new.values())
            self._reporter.add(list(new.values()))
        keys = [self._key(example) for example in batch]
        return [new[key] if key in new else done[key] for key in keys]

    def _batch(self, examples: Sequence[Example], index: int) -> Sequence[Example]:
        size = self._run.batch_size
        return examples[index * size : (index + 1) * size]

    def _key(self, example: Example) -> str:
        return self._settings.key(example.id)

    def _decode(self, examples: Sequence[Example], seed: int, *, warm_up: bool) -> list[Record]:
        """Decodes a batch; if that fails, each example alone."""
        try:
            answers = self._answer(examples, seed)
        except FAILURES as error:
            if isinstance(error, ValueError):
                self._refuse_misfit()
            if len(examples) == 1:
                answers = [{"error": said_of(error)}]
            else:
                return [
                    record
                    for i, example in enumerate(examples, start=1)
                    for record in self._decode([example], seed + i * _ROW_STRIDE, warm_up=warm_up)
                ]
        return [
            self._record(example, one, warm_up=warm_up)
            for example, one in zip(examples, answers, strict=True)
        ]

    def _answer(self, examples: Sequence[Example], seed: int) -> list[ScoredExample]:
        config = replace(self._settings.decoding, seed=seed)
        return answer(self._run, examples, config, [self._reporter])

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
            "settings": self._settings.key(""),
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
