"""Checks what `eval calibrate` promises on the embedded models: python -m benchmarks.calibration.

For each task and seed a ladder of settings is calibrated on prompts of one split. The setting that
is certified is then measured on prompts of another split, which the calibration never saw, and the
guarantee held if the accuracy drops there by no more than was promised. A second, sharper check
draws thousands of calibrations from those measured prompts, whose true drops are known exactly.

Records are kept: a run that was stopped goes on where it stopped.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from dllm_decode import StepEvent, load_model
from dllm_decode.launch import run_main
from eval.calibrate.bounds import clopper_pearson, max_num_lost, wealth
from eval.calibrate.command import Decoder, calibrate
from eval.calibrate.ladders import LADDERS
from eval.calibrate.procedure import Guarantee
from eval.metrics.statistics import paired_score_interval
from eval.runs.names import parse_sampler, parse_task
from eval.runs.progress import Reporter
from eval.runs.provenance import machine_of, now
from eval.runs.records import Folder, Record, Settings
from eval.runs.runner import Checked, plan_of
from eval.runs.settings import Run
from eval.runs.sweep import decoding_of

TASKS: Mapping[str, str] = {
    "word_problems": "mini",
    "lists/sort?n=4": "mini-lists",
    "lists/insert_any?n=4": "mini-lists",
    "lists/remove_any?n=4": "mini-lists",
    "lists/shuffle?n=4": "mini-lists",
}
"""By address the embedded model that knows the task. In each some setting loses too much."""

REFERENCE = "FixedSchedule(10000)"
CALIBRATED_ON, CHECKED_ON = "val", "test"


@dataclass(frozen=True)
class Study:
    """The tasks, calibrations and guarantee to check.

    Attributes:
        tasks: Addresses of `TASKS`.
        num_seeds: Calibrations of each task, each on prompts of its own.
        num_prompts: Prompts of a calibration.
        num_checked: Prompts on which certified settings are measured.
        num_resampled: Calibrations that are drawn from the measured prompts.
        guarantee: The promised guarantee.
        ladder: Samplers from cautious to bold.
        batch_size: Rows decoded together.
    """

    tasks: tuple[str, ...] = tuple(TASKS)
    num_seeds: int = 5
    num_prompts: int = 500
    num_checked: int = 1000
    num_resampled: int = 2000
    guarantee: Guarantee = field(default_factory=Guarantee)
    ladder: tuple[str, ...] = LADDERS["threshold"]
    batch_size: int = 125

    @property
    def num_answers(self) -> int:
        """Answers of a whole study, those included that calibrations need not decode."""
        prompts = self.num_seeds * self.num_prompts + self.num_checked
        return len(self.tasks) * prompts * (1 + len(self.ladder))


@dataclass(frozen=True)
class Measured:
    """A setting on the prompts of the check.

    Attributes:
        sampler: Its repr.
        accuracy: Share of right answers.
        drop: Drop of the accuracy, against the reference.
        low: Lower end of its 95 % interval.
        high: Upper end.
        speedup: Forwards of the reference over its own.
    """

    sampler: str
    accuracy: float
    drop: float
    low: float
    high: float
    speedup: float


@dataclass(frozen=True)
class Calibration:
    """One calibration, and whether its promise held.

    Attributes:
        seed: Seed of its prompts.
        sampler: The setting that it chose; the reference if it certified none.
        num_certified: Settings that it certified.
        num_prompts: Prompts that its last certificate needed.
        seen_drop: Drop of the chosen setting on the prompts of the calibration.
        held: On the prompts of the check the drop is at most what was promised.
        refuted: It is more, and its interval leaves out what was promised.
    """

    seed: int
    sampler: str
    num_certified: int
    num_prompts: int
    seen_drop: float
    held: bool
    refuted: bool


@dataclass(frozen=True)
class Resampled:
    """Calibrations on prompts drawn, with replacement, from those of the check.

    The drops on all of these are their true drops, so a broken promise is known for certain.

    Attributes:
        num_runs: Number of calibrations.
        num_broken: Calibrations that certified any setting which truly loses too much.
        speedup: Mean speed-up of the chosen settings.
    """

    num_runs: int
    num_broken: int
    speedup: float


@dataclass(frozen=True)
class Finding:
    """The results of one task.

    Attributes:
        task: Its address.
        model: Embedded model.
        measured: The reference and the ladder, on the prompts of the check.
        calibrations: One a seed.
        resampled: The second check.
    """

    task: str
    model: str
    measured: tuple[Measured, ...]
    calibrations: tuple[Calibration, ...]
    resampled: Resampled

    def of(self, sampler: str) -> Measured:
        """Returns the measurement of a setting."""
        return next(one for one in self.measured if one.sampler == sampler)

    def best(self, max_drop: float) -> Measured:
        """Returns the fastest setting that keeps the promise on the check: known too late."""
        kept = [one for one in self.measured if one.drop <= max_drop]
        return max(kept, key=lambda one: one.speedup)


class Overall(Reporter):
    """One bar for a whole study; on anything but a terminal, a line for each part."""

    def __init__(self, console: Console, num_answers: int) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=20), TaskProgressColumn(),
            TimeRemainingColumn(compact=True), console=console, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._progress.add_task("records", total=num_answers)

    def __enter__(self) -> Reporter:
        self._progress.start()
        return self

    def end(self) -> None:
        self._progress.stop()

    def part(self, name: str, num_before: int) -> None:
        """Starts a part, before which so many answers were decoded or left out."""
        self._progress.update(self._task, description=name, completed=num_before)
        if not self._console.is_terminal:
            share = num_before / (self._progress.tasks[0].total or 1)
            self._console.print(f"{name} ({share:.0%} done)", highlight=False, markup=False)

    def begin(self, label: str, num_examples: int, done: Sequence[Record]) -> None:
        self._progress.advance(self._task, len(done))

    def add(self, records: Sequence[Record]) -> None:
        self._progress.advance(self._task, len(records))

    def __call__(self, event: StepEvent) -> None:
        pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    options = make_parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    study = Study(
        tasks=tuple(options.task or TASKS),
        num_seeds=options.seeds,
        num_prompts=options.num_prompts,
        num_checked=options.num_checked,
        num_resampled=options.num_resampled,
        guarantee=Guarantee(options.max_drop, options.confidence, options.test),
        ladder=LADDERS[options.ladder],
        batch_size=options.batch_size,
    )
    out = Path(options.out)
    reporter = Overall(Console(stderr=True), study.num_answers)
    with reporter:
        findings = [check_task(study, index, out, reporter) for index in range(len(study.tasks))]
    report = {
        "command": " ".join(["python -m benchmarks.calibration", *(arguments or sys.argv[1:])]),
        "date": now(),
        "machine": machine_of("cpu"),
        "study": asdict(study),
        "summary": summary_of(findings),
        "tasks": [asdict(finding) for finding in findings],
    }
    (out / "calibration.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    text = table_of(study, findings)
    (out / "calibration.md").write_text(text, encoding="utf-8")
    Console().print(text, markup=False, highlight=False, soft_wrap=True)


def make_parser() -> argparse.ArgumentParser:
    """Builds the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.calibration",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    own = Study()
    add = parser.add_argument
    add("out", help="results folder, made if need be; records that it has are used")
    add("--task", action="append", choices=tuple(TASKS), help="repeatable; default: all")
    add("--seeds", type=int, default=own.num_seeds, help="calibrations of each task")
    add("--num-prompts", type=int, default=own.num_prompts, help="prompts of a calibration")
    add("--num-checked", type=int, default=own.num_checked, help="prompts of the check")
    add("--num-resampled", type=int, default=own.num_resampled, help="of the second check")
    add("--max-drop", type=float, default=own.guarantee.max_drop, help="promised, as a share")
    add("--confidence", type=float, default=own.guarantee.confidence, help="of the promise")
    add("--test", choices=("both", "binomial", "betting"), default="both", help="as in calibrate")
    add("--ladder", choices=tuple(LADDERS), default="threshold", help="list of samplers")
    add("--batch-size", type=int, default=own.batch_size, help="rows decoded together")
    add("--threads", type=int, default=1, help="of torch")
    return parser


def check_task(study: Study, index: int, out: Path, reporter: Overall) -> Finding:
    """Decodes what the folder lacks for one task, and checks its calibrations."""
    task = study.tasks[index]
    done_before = index * study.num_answers // len(study.tasks)
    calibrated, checked = plans_of(study, task)
    folder = Folder(out / task.partition("?")[0].replace("/", "-"))
    folder.claim([one.settings for plan in (*calibrated, checked) for one in plan])
    machine = folder.note_machine(machine_of("cpu"))
    with folder.writing(0) as part:
        done = {record["key"]: record for record in folder.records() if record["error"] is None}
        decoder = Decoder(part, machine, done, reporter)
        reporter.part(f"{task}: check", done_before)
        scores, nfe = tables_of(decoder, checked)
        measured = measured_of(checked, scores, nfe)
        calibrations = []
        for seed, plan in enumerate(calibrated):
            num_before = study.num_checked + seed * study.num_prompts
            reporter.part(
                f"{task}: seed {seed}", done_before + num_before * (1 + len(study.ladder))
            )
            calibrations.append(calibration_of(study, seed, plan, decoder, measured))
    return Finding(
        task=task,
        model=TASKS[task],
        measured=measured,
        calibrations=tuple(calibrations),
        resampled=resample(study, scores, [one.speedup for one in measured]),
    )


def plans_of(study: Study, task: str) -> tuple[list[list[Checked]], list[Checked]]:
    """Returns for each calibration, and for the check, the reference and the ladder."""
    model, tokenizer = load_model(TASKS[task])
    assert tokenizer is not None

    def plan(split: str, limit: int, seed: int) -> list[Checked]:
        joint = "&" if "?" in task else "?"
        selection = parse_task(f"{task}{joint}split={split}&limit={limit}&examples_seed={seed}")
        return plan_of([
            Run(
                model=model, tokenizer=tokenizer, selection=selection,
                sampler=parse_sampler(sampler), decoding=decoding_of(selection, {}),
                batch_size=study.batch_size, trace=False,
                dtype=str(model.dtype).removeprefix("torch."),
            )
            for sampler in (REFERENCE, *study.ladder)
        ]).runs  # fmt: skip

    calibrated = [plan(CALIBRATED_ON, study.num_prompts, seed) for seed in range(study.num_seeds)]
    return calibrated, plan(CHECKED_ON, study.num_checked, 0)


Scores = NDArray[np.float64]


def tables_of(decoder: Decoder, plan: Sequence[Checked]) -> tuple[Scores, Scores]:
    """Decodes every setting of a plan; returns scores and forwards, settings by prompts."""
    records = [list(_records(decoder, one)) for one in plan]
    scores = [[record["scores"][record["primary"]] for record in own] for own in records]
    return np.array(scores), np.array([[record["nfe"] for record in own] for own in records])


def _records(decoder: Decoder, one: Checked) -> Iterator[Record]:
    for batch in decoder.batches(one):
        for record in batch:
            if record["error"] is not None:
                raise RuntimeError(f"{one.run.name} must answer every prompt: {record['error']}")
            yield record


def measured_of(plan: Sequence[Checked], scores: Scores, nfe: Scores) -> tuple[Measured, ...]:
    """Returns a table's measurement of each setting; the first is the reference."""
    found = []
    for one, own, forwards in zip(plan, scores, nfe, strict=True):
        interval = paired_score_interval(scores[0].tolist(), own.tolist())
        found.append(Measured(
            sampler=one.settings.sampler,
            accuracy=float(own.mean()),
            drop=float((scores[0] - own).mean()),
            low=-interval.high,
            high=-interval.low,
            speedup=float(nfe[0].sum() / forwards.sum()),
        ))  # fmt: skip
    return tuple(found)


def calibration_of(
    study: Study, seed: int, plan: Sequence[Checked], decoder: Decoder, measured: Sequence[Measured]
) -> Calibration:
    """Calibrates, as the command does, and looks up the chosen setting's result on the check."""
    list(_records(decoder, plan[0]))
    card = calibrate(plan[0], plan[1:], study.guarantee, decoder)
    chosen = Settings.of(dict(card.setting)).sampler
    certified = [rating for rating in card.ratings if rating.verdict.certified]
    verdict = next((r.verdict for r in certified if r.setting["sampler"] == chosen), None)
    outcome = next(one for one in measured if one.sampler == chosen)
    return Calibration(
        seed=seed,
        sampler=chosen,
        num_certified=len(certified),
        num_prompts=verdict.num_prompts if verdict else 0,
        seen_drop=verdict.drop if verdict else 0.0,
        held=outcome.drop <= study.guarantee.max_drop,
        refuted=outcome.low > study.guarantee.max_drop,
    )


def resample(study: Study, scores: Scores, speedups: Sequence[float]) -> Resampled:
    """Simulates calibrations by resampling the check's prompts, whose drops are the true ones.

    All calibrations advance together, setting by setting, until each meets the first that it
    cannot certify. The betting test may stop at any prompt; that it ever certifies is what counts.
    """
    guarantee, runs = study.guarantee, study.num_resampled
    drops = scores[0] - scores[1:]
    true_drops = drops.mean(1)
    size = (runs, study.num_prompts)
    chosen = np.random.default_rng(0).integers(scores.shape[1], size=size)
    most_lost = max_num_lost(study.num_prompts, guarantee.max_drop, guarantee.level)
    going, broken = np.ones(runs, bool), np.zeros(runs, bool)
    speed = np.ones(runs)
    for own, true_drop, speedup in zip(drops, true_drops, speedups[1:], strict=True):
        seen = own[chosen]
        certified = np.zeros(runs, bool)
        if guarantee.counts:
            certified |= (seen > 0).sum(1) <= most_lost
        if guarantee.bets:
            certified |= wealth(seen, guarantee.max_drop).max(1) >= 1 / guarantee.level
        going &= certified
        broken |= going & (true_drop > guarantee.max_drop)
        speed = np.where(going, np.maximum(speed, speedup), speed)
    return Resampled(runs, int(broken.sum()), float(speed.mean()))


def summary_of(findings: Sequence[Finding]) -> dict[str, Any]:
    """Counts kept promises over all tasks and seeds."""
    calibrations = [one for finding in findings for one in finding.calibrations]
    held = sum(one.held for one in calibrations)
    interval = clopper_pearson(held, len(calibrations))
    return {
        "num_calibrations": len(calibrations),
        "num_held": held,
        "held_low": interval.low,
        "held_high": interval.high,
        "num_refuted": sum(one.refuted for one in calibrations),
        "num_certified": sum(one.num_certified > 0 for one in calibrations),
        "num_resampled": sum(finding.resampled.num_runs for finding in findings),
        "num_broken": sum(finding.resampled.num_broken for finding in findings),
    }


def table_of(study: Study, findings: Sequence[Finding]) -> str:
    """Lays the findings out as Markdown."""
    found, promised = summary_of(findings), study.guarantee
    lines = [
        "| task | certified (of the seeds) | drop on the check | held | fewer forwards | possible "
        "| drawn calibrations that broke the promise |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(_row(finding, promised.max_drop) for finding in findings),
        "",
        f"Promise: a drop of at most {promised.max_drop:.4g} with confidence "
        f"{promised.confidence:.4g}, {study.num_prompts} prompts a calibration, "
        f"{study.num_checked} prompts a check. Held: {found['num_held']} of "
        f"{found['num_calibrations']} [{found['held_low']:.3f}, {found['held_high']:.3f}] "
        f"(Clopper-Pearson, 95 %); {found['num_refuted']} refuted with an interval; a setting was "
        f"certified in {found['num_certified']}. Drawn from the check's prompts: "
        f"{found['num_broken']} of {found['num_resampled']} broke the promise, at most "
        f"{1 - promised.confidence:.4g} of each task's may.",
    ]
    return "\n".join(lines) + "\n"


def _row(finding: Finding, max_drop: float) -> str:
    counted = Counter(one.sampler for one in finding.calibrations)
    chosen = [finding.of(sampler) for sampler in counted]
    names = [f"`{_short(one.sampler)}` ({counted[one.sampler]})" for one in chosen]
    drops = [f"{one.drop:+.4f} [{one.low:+.4f}, {one.high:+.4f}]" for one in chosen]
    speed = np.mean([finding.of(one.sampler).speedup for one in finding.calibrations])
    best, drawn = finding.best(max_drop), finding.resampled
    held = sum(one.held for one in finding.calibrations)
    return (
        f"| `{finding.task}` | {', '.join(names)} | {', '.join(drops)} "
        f"| {held} of {len(finding.calibrations)} | {speed:.1f}x "
        f"| {best.speedup:.1f}x, `{_short(best.sampler)}` "
        f"| {drawn.num_broken} of {drawn.num_runs} ({drawn.speedup:.1f}x) |"
    )


def _short(sampler: str) -> str:
    return "one token a step" if sampler == repr(parse_sampler(REFERENCE)) else sampler.replace(
        "threshold=", ""
    )  # fmt: skip


if __name__ == "__main__":
    run_main(main, stopped="Stopped; records are kept, the same command goes on from here.")
