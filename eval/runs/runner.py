"""Runs settings over examples into a results folder; can be killed and started again."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from eval.runs.names import Selection
from eval.runs.origins import require_unchanged, write_notes
from eval.runs.progress import SILENT, Reporter
from eval.runs.provenance import machine_of
from eval.runs.records import Folder, Record, Settings, Skipped
from eval.runs.settings import ALONE, Place, Run
from eval.runs.worker import Checked, Decoding, Worker, in_turn
from eval.tasks import Example


class RunPlan(NamedTuple):
    """Which runs can be decoded and which cannot, known before the first forward."""

    runs: list[Checked]
    skipped: list[Skipped]


def execute(
    runs: Sequence[Run],
    folder: str | Path,
    *,
    place: Place = ALONE,
    decoded: Decoding = in_turn,
    reporter: Reporter = SILENT,
    retry_errors: bool = False,
    skip_impossible: bool = False,
    drop_others: bool = False,
    on_plan: Callable[[RunPlan, list[Settings]], None] = lambda plan, others: None,
) -> Folder:
    """Decodes and scores what the folder lacks; the first run is the reference of the report.

    Every run is checked before the first forward. Batches are the same whatever was done before
    and however many processes share them, so that a run that was killed and started again has the
    records of one that was not.

    Args:
        runs: The runs.
        folder: Folder of the records; made if need be.
        place: Which batches are this process's: every `world_size`-th.
        decoded: Decodes this process's batches: here, or on Ray actors (`eval.runs.crew`).
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
    others = results.claim(settings, skipped=plan.skipped, alone=drop_others)
    on_plan(plan, others)
    with results.writing(place.rank) as part, reporter:
        done = done_of(results, plan.runs, retry_errors=retry_errors, is_first=place.rank == 0)
        machine = results.note_machine(machine_of(runs[0].model.device))
        workers = [Worker(one, part, reporter, machine) for one in plan.runs]
        keys = [key for worker in workers for key in worker.keys(place)]
        reporter.expect(len(workers), len([key for key in keys if key not in done]))
        for worker in workers:
            worker.work(done, place, decoded)
    return results


def done_of(
    folder: Folder, runs: Sequence[Checked], *, retry_errors: bool, is_first: bool = True
) -> dict[str, Record]:
    """Returns by key the records of a folder that are not decoded anew.

    The first of several processes notes what the records are made of. With `retry_errors`, examples
    that raised are left out. Raises ValueError if the code of a plug-in, or a file that was read,
    changed since.
    """
    records = folder.records()
    done = {one["key"]: one for one in records if one["error"] is None or not retry_errors}
    by_setting = {one.settings.key(""): one.run for one in runs}
    kept = {record["settings"] for record in done.values()}
    notes = require_unchanged(folder.path, by_setting, kept)
    if is_first:
        write_notes(folder.path, notes)
    return done


def plan_of(runs: Sequence[Run], *, skip_impossible: bool = False) -> RunPlan:
    """Checks runs without a forward.

    Raises ValueError if a run is impossible and may not be skipped, all are, or two are the same.
    """
    plan = RunPlan([], [])
    reasons: list[str] = []
    examples: dict[Selection, Sequence[Example]] = {}
    for run in runs:
        some = examples.setdefault(run.selection, run.selection.examples())
        try:
            run.check(some)
            plan.runs.append(Checked(run, some, run.settings(some)))
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
