"""Runs settings over examples into a results folder; can be killed and started again."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from dllm_decode.cli.models import ALONE, Place
from eval.runs.answers import answer, said_of
from eval.runs.folder import Folder, Skipped
from eval.runs.names import Selection
from eval.runs.progress import SILENT, Reporter
from eval.runs.provenance import machine_of, now, package_commit, require_unchanged, write_notes
from eval.runs.records import Record, ScoredExample, append
from eval.runs.settings import Run, RunSettings
from eval.tasks import Example
from eval.tasks.checks import FAILURES
from samplers.logits.noise import wrapped

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
    settings: RunSettings


class RecordPart(NamedTuple):
    """The file of this process in a results folder.

    `machine` is the name of the folder's note on the process; `done` has records by key, those of
    earlier runs and those that `Worker.finished` adds.
    """

    path: Path
    machine: str
    done: dict[str, Record]


class Worker:
    """Decodes the batches of one run that belong to this process.

    `settings_key` names the setting in records; `keys` are those of this process's examples, in the
    order in which they are decoded.
    """

    def __init__(
        self, checked: Checked, part: RecordPart, reporter: Reporter = SILENT, place: Place = ALONE
    ) -> None:
        self._run, examples, self._settings = checked
        size = self._run.batch_size
        self._batches = [examples[i : i + size] for i in range(0, len(examples), size)]
        self._mine = range(place.rank, len(self._batches), place.world_size)
        self._part, self._reporter = part, reporter
        self._num_begun = 0
        self.settings_key = self._settings.key("")
        self.keys = [self._key(one) for index in self._mine for one in self._batches[index]]

    def finished(self, first: int = 0) -> Iterator[list[Record]]:
        """Yields the records of each batch from the example `first` on; decodes missing ones."""
        self._begin()
        done = self._part.done
        for number in self._mine:
            rows = self._batches[number]
            missing = {example.id for example in rows if self._key(example) not in done}
            asked = rows[max(0, first - number * self._run.batch_size) :]
            if asked and missing:
                found = self._decoded(number)
                records = [record for record in found if record["example"] in missing]
                append(self._part.path, records)
                self._reporter.add(records)
                done.update((record["key"], record) for record in records)
            if asked:
                yield [done[self._key(example)] for example in asked]

    def _decoded(self, number: int) -> list[Record]:
        """Decodes a batch."""
        rows = self._batches[number]
        warm_up = self._num_begun < _NUM_WARM_UP
        self._num_begun += len(rows)
        seed = wrapped(self._settings.decoding.seed + _BATCH_STRIDE * number)
        return self._decode(rows, seed, warm_up=warm_up)

    def _begin(self) -> None:
        """Starts the display of the run."""
        settings, done = self._settings, self._part.done
        seed = f" seed {settings.decoding.seed}" if settings.decoding.seed else ""
        within = f" within {settings.constraint}" if settings.constraint else ""
        label = f"{' + '.join(settings.parts)}{seed} on {settings.task}{within}"
        self._reporter.begin(label, len(self.keys), [done[k] for k in self.keys if k in done])

    def _key(self, example: Example) -> str:
        return self._settings.key(example.id)

    def _decode(self, examples: Sequence[Example], seed: int, *, warm_up: bool) -> list[Record]:
        """Decodes a batch; if that fails, each example alone."""
        try:
            config = replace(self._settings.decoding, seed=seed)
            answers = answer(self._run, examples, config, [self._reporter])
        except FAILURES as error:
            if len(examples) > 1:
                return [
                    record
                    for i, example in enumerate(examples, start=1)
                    for record in self._decode(
                        [example], wrapped(seed + i * _ROW_STRIDE), warm_up=warm_up
                    )
                ]
            answers = [{"error": said_of(error)}]
        return [
            self._record(example, one, warm_up=warm_up)
            for example, one in zip(examples, answers, strict=True)
        ]

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
            "machine": self._part.machine,
            "date": now(),
            "primary": self._run.selection.task.primary,
            "prompt": example.turns()[-1]["content"],
            "target": example.target,
            "warm_up": warm_up,
            **found,
        }


class RunPlan(NamedTuple):
    """Which runs can be decoded and which cannot, known before the first forward."""

    runs: list[Checked]
    skipped: list[Skipped]


def execute(
    runs: Sequence[Run],
    folder: str | Path,
    *,
    place: Place = ALONE,
    reporter: Reporter = SILENT,
    retry_errors: bool = False,
    skip_impossible: bool = False,
    drop_others: bool = False,
    on_plan: Callable[[RunPlan, list[RunSettings]], None] = lambda plan, others: None,
) -> Folder:
    """Decodes and scores what the folder lacks; the first run is the reference of the report.

    Every run is checked before the first forward. Batches are the same whatever was done before
    and however many processes share them, so that a run that was killed and started again has the
    records of one that was not.

    Args:
        runs: The runs.
        folder: Folder of the records; made if need be.
        place: Which batches are this process's: every `world_size`-th.
        reporter: Follows the progress.
        retry_errors: Decode examples anew whose record is an error.
        skip_impossible: Leave out runs whose parts do not fit together, and note why.
        drop_others: Show these runs only, see `Folder.claim`.
        on_plan: Told, before the first forward, the plan and the other runs of the folder.

    Raises:
        ValueError: If a run is impossible, all of them are, two are the same, another process
            writes the folder, or the code of a plug-in or a file of weights changed since its
            records.
    """
    plan = plan_of(runs, skip_impossible=skip_impossible)
    settings = [one.settings for one in plan.runs]
    results = Folder(folder)
    with part_of(results, plan.runs, place, retry_errors=retry_errors) as part:
        others = results.claim(settings, skipped=plan.skipped, alone=drop_others)
        on_plan(plan, others)
        workers = [Worker(one, part, reporter, place) for one in plan.runs]
        missing = [key for worker in workers for key in worker.keys if key not in part.done]
        with reporter:
            reporter.expect(len(workers), len(missing))
            for worker in workers:
                deque(worker.finished(), maxlen=0)
    return results


@contextmanager
def part_of(
    folder: Folder, runs: Sequence[Checked], place: Place = ALONE, *, retry_errors: bool
) -> Iterator[RecordPart]:
    """Gives a part of a folder to this process alone, with the records that are not decoded anew.

    The first of several processes notes what the records are made of. With `retry_errors`, examples
    that raised are left out. Raises ValueError if another process writes the part, or the code of a
    plug-in or a file that was read changed since.
    """
    with folder.writing(place.rank) as path:
        records = folder.records()
        done = {one["key"]: one for one in records if one["error"] is None or not retry_errors}
        by_setting = {one.settings.key(""): one.run for one in runs}
        kept = {record["settings"] for record in done.values()}
        notes = require_unchanged(folder.path, by_setting, kept)
        if place.rank == 0:
            write_notes(folder.path, notes)
        machine = folder.note_machine(machine_of(runs[0].run.model.device))
        yield RecordPart(path, machine, done)


def plan_of(runs: Sequence[Run], *, skip_impossible: bool = False) -> RunPlan:
    """Checks runs without a forward.

    Raises ValueError if a run is impossible and may not be skipped, all are, or two are the same.
    """
    plan = RunPlan([], [])
    reasons: list[str] = []
    examples: dict[Selection, Sequence[Example]] = {}
    for run in runs:
        if run.selection not in examples:
            examples[run.selection] = run.selection.examples()
        own = examples[run.selection]
        try:
            run.check(own)
            plan.runs.append(Checked(run, own, run.settings(own)))
        except ValueError as error:
            reasons.append(str(error))
            plan.skipped.append(Skipped(run.name, str(error)))
    if plan.skipped and (not skip_impossible or not plan.runs):
        raise ValueError(_refusal(plan, len(runs)))
    settings = [one.settings for one in plan.runs]
    for index, one in enumerate(settings):
        if one in settings[:index]:
            raise ValueError(
                f"Each setting must be named once, got {plan.runs[index].run.name} twice: "
                "it would count as two."
            )
    return plan


def _refusal(plan: RunPlan, num_runs: int) -> str:
    by_reason: dict[str, list[str]] = {}
    for one in plan.skipped:
        by_reason.setdefault(one.reason, []).append(one.setting)
    if len(plan.skipped) == num_runs == 1:
        return plan.skipped[0].reason
    lines = [f"- {reason} ({'; '.join(names)})" for reason, names in by_reason.items()]
    remedy = "" if not plan.runs else " Correct them, or leave them out with --skip-impossible."
    return "\n".join([f"{len(plan.skipped)} of {num_runs} settings cannot be run.{remedy}", *lines])
