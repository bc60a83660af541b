"""Decodes examples under each setting into a results folder; a killed run can be resumed."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from dllm_decode.settings.ranks import ALONE, ProcessRank
from eval.runs.folder import Folder
from eval.runs.prompts import warn_of_prompts
from eval.runs.provenance import machine_of, now, package_commit, require_unchanged, write_notes
from eval.runs.records import Record, ScoredExample, append
from eval.runs.reporter import SILENT, Reporter
from eval.runs.scoring import batch_seed, decode_and_score, error_text
from eval.runs.settings import Run, RunSettings
from eval.runs.task_addresses import Selection
from eval.tasks import Example
from eval.tasks.task_checks import FAILURES
from samplers.logits.noise import wrap_seed

# Examples of a batch that failed are decoded alone, with seeds this far apart.
_ROW_STRIDE = 1 << 20

# The first examples of a process in each run do not count for its timings, because kernels are
# chosen and memory is reserved then. The number is d3LLM's.
_NUM_WARM_UP = 10


class PlannedRun(NamedTuple):
    """A run that can be decoded, with its examples and the settings that name it."""

    run: Run
    examples: Sequence[Example]
    settings: RunSettings


class RecordPart(NamedTuple):
    """The file of this process in a results folder.

    `machine` is the name of the folder's note on the process; `done` maps keys to records:
    records of earlier runs, and records that `Worker.decode_missing` adds.
    """

    path: Path
    machine: str
    done: dict[str, Record]


class Worker:
    """Decodes the batches of one run that belong to this process.

    `settings_key` names the setting in records; `keys` are the keys of this process's examples, in
    the order of decoding.
    """

    def __init__(
        self,
        planned: PlannedRun,
        part: RecordPart,
        reporter: Reporter = SILENT,
        process: ProcessRank = ALONE,
    ) -> None:
        self._run, examples, self._settings = planned
        size = self._run.batch_size
        self._batches = [examples[i : i + size] for i in range(0, len(examples), size)]
        self._mine = range(process.rank, len(self._batches), process.world_size)
        self._part, self._reporter = part, reporter
        self.settings_key = self._settings.key("")
        self.keys = [self._key(example) for index in self._mine for example in self._batches[index]]

    def decode_missing(self) -> Iterator[list[Record]]:
        """Decodes and appends missing examples; yields all records batch by batch."""
        self._begin()
        done, num_begun = self._part.done, 0
        for number in self._mine:
            batch = self._batches[number]
            missing = {example.id for example in batch if self._key(example) not in done}
            if missing:
                seed = batch_seed(self._settings.config.seed, number)
                warm_up = num_begun < _NUM_WARM_UP
                decoded = self._decode_batch(batch, seed, warm_up=warm_up)
                num_begun += len(batch)
                records = [record for record in decoded if record["example"] in missing]
                append(self._part.path, records)
                self._reporter.add(records)
                done.update((record["key"], record) for record in records)
            yield [done[self._key(example)] for example in batch]

    def _begin(self) -> None:
        """Starts the display of the run."""
        settings, done = self._settings, self._part.done
        seed = f" seed {settings.config.seed}" if settings.config.seed else ""
        within = f" within {settings.constraint}" if settings.constraint else ""
        label = f"{' + '.join(settings.parts)}{seed} on {settings.task}{within}"
        self._reporter.begin(label, len(self.keys), [done[k] for k in self.keys if k in done])

    def _key(self, example: Example) -> str:
        return self._settings.key(example.id)

    def _decode_batch(
        self, examples: Sequence[Example], seed: int, *, warm_up: bool
    ) -> list[Record]:
        """Decodes a batch; if that fails, each example alone."""
        try:
            config = replace(self._settings.config, seed=seed)
            answers = decode_and_score(self._run, examples, config, [self._reporter])
        except FAILURES as error:
            if len(examples) > 1:
                return [
                    record
                    for i, example in enumerate(examples, start=1)
                    for record in self._decode_batch(
                        [example], wrap_seed(seed + i * _ROW_STRIDE), warm_up=warm_up
                    )
                ]
            answers = [{"error": error_text(error)}]
        return [
            self._record(example, scored, warm_up=warm_up)
            for example, scored in zip(examples, answers, strict=True)
        ]

    def _record(self, example: Example, scored: ScoredExample, *, warm_up: bool) -> Record:
        return {
            "key": self._key(example),
            "settings": self.settings_key,
            "example": example.id,
            "sampler": self._settings.sampler,
            "cache": self._settings.cache,
            "verifier": self._settings.verifier,
            "blocks": self._settings.blocks,
            "git": package_commit(),
            "machine": self._part.machine,
            "date": now(),
            "primary": self._run.selection.task.primary,
            "prompt": example.turns()[-1]["content"],
            "target": example.target,
            "warm_up": warm_up,
            **scored,
        }


def execute(
    runs: Sequence[Run],
    folder: str | Path,
    *,
    process: ProcessRank = ALONE,
    reporter: Reporter = SILENT,
    on_plan: Callable[[list[PlannedRun], list[RunSettings]], None] = lambda runs, others: None,
) -> Folder:
    """Decodes and scores the examples that a folder lacks; the first run is the reference.

    Every run is checked before the first forward. The batches depend neither on earlier commands
    nor on the number of processes, so that a run that was killed and started again has the same
    records as an uninterrupted run. Examples whose record is an error are decoded anew.

    Args:
        runs: The runs.
        folder: Folder of the records; made if need be.
        process: Rank of this process, which decodes every `world_size`-th batch.
        reporter: Follows the progress.
        on_plan: Called before the first forward with the runs and the folder's other runs.

    Raises:
        ValueError: If a run is impossible, two are the same, another process writes the folder,
            or the code of a plug-in or a file of weights has changed since the records were made.
    """
    planned_runs = plan_runs(runs)
    results = Folder(folder)
    with open_part(results, planned_runs, process) as part:
        others = results.claim(planned.settings for planned in planned_runs)
        on_plan(planned_runs, others)
        workers = [Worker(planned, part, reporter, process) for planned in planned_runs]
        missing = [key for worker in workers for key in worker.keys if key not in part.done]
        with reporter:
            reporter.expect(len(workers), len(missing))
            for worker in workers:
                deque(worker.decode_missing(), maxlen=0)
    return results


@contextmanager
def open_part(
    folder: Folder, runs: Sequence[PlannedRun], process: ProcessRank = ALONE
) -> Iterator[RecordPart]:
    """Locks this process's part of a folder; yields it with the records that are not errors.

    The process of rank 0 notes the code and the files that the records depend on. Raises ValueError
    if another process writes the part, or the code of a plug-in or a file that was read has changed
    since.
    """
    with folder.writing(process.rank) as path:
        done = {r["key"]: r for r in folder.records() if r["error"] is None}
        by_setting = {planned.settings.key(""): planned.run for planned in runs}
        done_settings = {record["settings"] for record in done.values()}
        notes = require_unchanged(folder.path, by_setting, done_settings)
        if process.rank == 0:
            write_notes(folder.path, notes)
        machine = folder.note_machine(machine_of(runs[0].run.model.device))
        yield RecordPart(path, machine, done)


def plan_runs(runs: Sequence[Run]) -> list[PlannedRun]:
    """Returns runs with their examples and settings, checked without a forward.

    Raises ValueError if a run is impossible, or two are the same.
    """
    planned_runs: list[PlannedRun] = []
    reasons: dict[str, list[str]] = {}
    examples: dict[Selection, Sequence[Example]] = {}
    for run in runs:
        if run.selection not in examples:
            examples[run.selection] = run.selection.examples()
        run_examples = examples[run.selection]
        try:
            run.check(run_examples)
            planned_runs.append(PlannedRun(run, run_examples, run.settings(run_examples)))
        except ValueError as error:
            reasons.setdefault(str(error), []).append(run.name)
    if reasons:
        raise ValueError(_refusal(reasons, len(runs)))
    settings = [planned.settings for planned in planned_runs]
    for index, setting in enumerate(settings):
        if setting in settings[:index]:
            raise ValueError(
                f"Each setting must be named once, got {runs[index].name} twice: "
                "it would count as two."
            )
    return planned_runs


def warn_of_runs(runs: Sequence[PlannedRun]) -> None:
    """Warns on standard error, by task and model, of unknown words in the prompts of runs."""
    warned = set()
    for run, examples, settings in runs:
        key = (settings.model, settings.task, settings.prompts)
        if key not in warned:
            warned.add(key)
            label = f"{settings.task}, model {settings.model}"
            warn_of_prompts(label, run.tokenizer, examples, chat=settings.prompts == "chat")


def _refusal(reasons: Mapping[str, Sequence[str]], num_runs: int) -> str:
    """Returns the text that refuses runs, given the names of the runs by reason."""
    if num_runs == 1:
        return next(iter(reasons))
    num_impossible = sum(map(len, reasons.values()))
    lines = [f"- {reason} ({'; '.join(names)})" for reason, names in reasons.items()]
    head = (
        f"{num_impossible} of {num_runs} settings cannot be run. Correct them, or run the others "
        "by commands of their own into the same folder."
    )
    return "\n".join([head, *lines])
