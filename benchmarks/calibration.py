"""Checks what `eval calibrate` promises on the embedded models: python -m benchmarks.calibration.

For each task and seed a ladder of settings is calibrated on prompts of one split. The setting that
is certified is then measured on prompts of another split, which the calibration never saw, and the
guarantee held if the accuracy drops there by no more than was promised. A second, sharper check
draws thousands of calibrations from those measured prompts, whose true drops are known exactly.

Records are kept: a run that was stopped goes on where it stopped.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.frame import Row, origin, read_options, table_of
from dllm_decode import load_model
from dllm_decode.cli.plugins import parse_sampler
from dllm_decode.launch import run_main
from eval.metrics.statistics import paired_score_interval
from eval.runs.folder import Folder
from eval.runs.names import parse_task
from eval.runs.progress import Reporter
from eval.runs.records import Record
from eval.runs.runner import Checked, RecordPart, Worker, part_of, plan_of
from eval.runs.settings import Run, RunSettings, decoding_of
from eval.studies.bounds import clopper_pearson, max_num_lost, wealth
from eval.studies.calibration import calibrate
from eval.studies.ladders import LADDERS
from eval.studies.procedure import Guarantee

# Tasks in which some setting loses too much.
TASKS = (
    "word_problems", "lists/sort?n=4", "lists/insert_any?n=4", "lists/remove_any?n=4",
    "lists/shuffle?n=4",
)  # fmt: skip
REFERENCE = "FixedSchedule(10000)"
CALIBRATED_ON, CHECKED_ON = "val", "test"
OPTIONS = {
    "task": (TASKS, "tasks"),
    "seeds": (5, "calibrations of each task, each on prompts of its own"),
    "num_prompts": (500, "prompts of a calibration"),
    "num_checked": (1000, "prompts of the check"),
    "num_resampled": (2000, "calibrations that are drawn from the prompts of the check"),
    "max_drop": (Guarantee().max_drop, "promised, as a share"),
    "confidence": (Guarantee().confidence, "of the promise"),
    "test": (dict.fromkeys(("both", "binomial", "betting")), "as in calibrate"),
    "ladder": ({"threshold": (), **LADDERS}, "list of samplers, from cautious to bold"),
    "batch_size": (125, "rows decoded together"),
    "threads": (1, "of torch"),
}
Scores = NDArray[np.float64]


class MeasuredSetting(NamedTuple):
    """A setting on the prompts of the check.

    Attributes:
        sampler: Its repr.
        drop: Drop of the accuracy against the reference; `low` and `high` are its 95 % interval.
        speedup: Forwards of the reference over its own.
    """

    sampler: str
    drop: float
    low: float
    high: float
    speedup: float


class Drawn(NamedTuple):
    """Calibrations on prompts drawn, with replacement, from those of the check.

    Attributes:
        num_broken: Calibrations that certified any setting which truly loses too much.
        speedup: Mean speed-up of the chosen settings.
    """

    num_broken: int
    speedup: float


class Finding(NamedTuple):
    """The results of one task.

    `measured` is the reference and the ladder on the prompts of the check; `chosen` is the setting
    that each calibration chose, which is the reference if it certified none.
    """

    task: str
    measured: list[MeasuredSetting]
    chosen: list[MeasuredSetting]
    drawn: Drawn

    def num_held(self, max_drop: float) -> int:
        """Counts calibrations whose setting drops by no more than promised on the check."""
        return sum(one.drop <= max_drop for one in self.chosen)


def main(words: Sequence[str] | None = None) -> None:
    """Runs the command line."""
    options = read_options(
        "benchmarks.calibration", __doc__ or "", OPTIONS, words,
        folder="results folder, made if need be; records that it has are used",
    )  # fmt: skip
    torch.set_num_threads(options.threads)
    guarantee = Guarantee(options.max_drop, options.confidence, options.test)
    with Reporter(Console(stderr=True)) as reporter:
        findings = [check_task(task, options, guarantee, reporter) for task in options.task]
    rows = [row_of(finding, guarantee.max_drop) for finding in findings]
    text = f"{table_of(rows)}\n{summary_of(findings, options)}\n"
    tasks = [
        {"task": one.task, "num_broken": one.drawn.num_broken, "speedup": one.drawn.speedup}
        | {name: [row._asdict() for row in getattr(one, name)] for name in ("measured", "chosen")}
        for one in findings
    ]
    report = {**origin(options.command, "cpu"), "rows": rows, "tasks": tasks}
    (options.out / "calibration.json").write_text(json.dumps(report, indent=1) + "\n")
    (options.out / "calibration.md").write_text(text, encoding="utf-8")
    print(text, end="")


def check_task(task: str, options: Any, guarantee: Guarantee, reporter: Reporter) -> Finding:
    """Decodes what the folder lacks for one task, and checks its calibrations."""
    calibrated, checked = plans_of(task, options)
    folder = Folder(options.out / task.partition("?")[0].replace("/", "-"))
    everything = [one for plan in (*calibrated, checked) for one in plan]
    with part_of(folder, everything, retry_errors=True) as part:
        folder.claim([one.settings for one in everything])
        records = [list(records_of(one, part, reporter)) for one in checked]
        scores = np.array([[one["scores"][one["primary"]] for one in own] for own in records])
        nfe = np.array([[one["nfe"] for one in own] for own in records])
        measured = measured_of(checked, scores, nfe)
        chosen = []
        for plan in calibrated:
            list(records_of(plan[0], part, reporter))
            card = calibrate(plan[0], plan[1:], guarantee, part, reporter)
            sampler = RunSettings.of(dict(card.setting)).sampler
            chosen.append(next(one for one in measured if one.sampler == sampler))
    size, speedups = (options.num_resampled, options.num_prompts), [one.speedup for one in measured]
    return Finding(task, measured, chosen, draw(size, guarantee, scores, speedups))


def plans_of(task: str, options: Any) -> tuple[list[list[Checked]], list[Checked]]:
    """Returns for each calibration, and for the check, the reference and the ladder."""
    model, tokenizer = load_model("mini" if task == "word_problems" else "mini-lists")
    assert tokenizer is not None

    def plan(split: str, limit: int, seed: int) -> list[Checked]:
        joint = "&" if "?" in task else "?"
        selection = parse_task(f"{task}{joint}split={split}&limit={limit}&examples_seed={seed}")
        return plan_of([
            Run(
                model=model, tokenizer=tokenizer, selection=selection,
                sampler=parse_sampler(sampler), decoding=decoding_of(selection, {}),
                batch_size=options.batch_size, trace=False,
                dtype=str(model.dtype).removeprefix("torch."),
            )
            for sampler in (REFERENCE, *LADDERS[options.ladder])
        ]).runs  # fmt: skip

    calibrated = [plan(CALIBRATED_ON, options.num_prompts, seed) for seed in range(options.seeds)]
    return calibrated, plan(CHECKED_ON, options.num_checked, 0)


def records_of(one: Checked, part: RecordPart, reporter: Reporter) -> Iterator[Record]:
    """Decodes a setting and yields its records."""
    for batch in Worker(one, part, reporter).finished():
        for record in batch:
            if record["error"] is not None:
                raise RuntimeError(f"{one.run.name} must answer every prompt: {record['error']}")
            yield record


def measured_of(plan: Sequence[Checked], scores: Scores, nfe: Scores) -> list[MeasuredSetting]:
    """Measures each setting, from scores and forwards, settings by prompts; the reference first."""
    found = []
    for one, own, forwards in zip(plan, scores, nfe, strict=True):
        interval = paired_score_interval(scores[0].tolist(), own.tolist())
        drop, speedup = float((scores[0] - own).mean()), float(nfe[0].sum() / forwards.sum())
        found.append(
            MeasuredSetting(one.settings.sampler, drop, -interval.high, -interval.low, speedup)
        )
    return found


def draw(
    size: tuple[int, int], guarantee: Guarantee, scores: Scores, speedups: Sequence[float]
) -> Drawn:
    """Simulates calibrations by resampling the check's prompts, whose drops are the true ones.

    All calibrations advance together, setting by setting, until each meets the first that it
    cannot certify. The betting test may stop at any prompt, so that it counts if it ever certifies.

    Args:
        size: Number of calibrations, and prompts of each.
        guarantee: The promise.
        scores: Settings by prompts, the reference first.
        speedups: One for each setting.
    """
    num_runs, num_prompts = size
    drops = scores[0] - scores[1:]
    chosen = np.random.default_rng(0).integers(scores.shape[1], size=size)
    most_lost = max_num_lost(num_prompts, guarantee.max_drop, guarantee.level)
    going, broken = np.ones(num_runs, bool), np.zeros(num_runs, bool)
    speed = np.ones(num_runs)
    for own, speedup in zip(drops, speedups[1:], strict=True):
        seen = own[chosen]
        certified = np.zeros(num_runs, bool)
        if guarantee.counts:
            certified |= (seen > 0).sum(1) <= most_lost
        if guarantee.bets:
            certified |= wealth(seen, guarantee.max_drop).max(1) >= 1 / guarantee.level
        going &= certified
        broken |= going & (own.mean() > guarantee.max_drop)
        speed = np.where(going, np.maximum(speed, speedup), speed)
    return Drawn(int(broken.sum()), float(speed.mean()))


def summary_of(findings: Sequence[Finding], options: Any) -> str:
    """Counts kept promises over all tasks and seeds, in words."""
    chosen = [one for finding in findings for one in finding.chosen]
    held = sum(finding.num_held(options.max_drop) for finding in findings)
    interval = clopper_pearson(held, len(chosen))
    refuted = sum(one.low > options.max_drop for one in chosen)
    certified = sum(one.sampler != repr(parse_sampler(REFERENCE)) for one in chosen)
    broken = sum(finding.drawn.num_broken for finding in findings)
    return (
        f"Promise: a drop of at most {options.max_drop:.4g} with confidence "
        f"{options.confidence:.4g}, {options.num_prompts} prompts a calibration, "
        f"{options.num_checked} prompts a check. Held: {held} of {len(chosen)} "
        f"[{interval.low:.3f}, {interval.high:.3f}] (Clopper-Pearson, 95 %); {refuted} refuted "
        f"with an interval; a setting was certified in {certified}. Drawn from the check's "
        f"prompts: {broken} of {options.num_resampled * len(findings)} broke the promise, at most "
        f"{1 - options.confidence:.4g} of each task's may."
    )


def row_of(finding: Finding, max_drop: float) -> Row:
    """Makes a task's row of the table."""
    counted = Counter(finding.chosen)
    kept = [one for one in finding.measured if one.drop <= max_drop]
    # The fastest setting that keeps the promise on the check, which is known too late.
    best = max(kept, key=lambda one: one.speedup)
    speedup = sum(one.speedup for one in finding.chosen) / len(finding.chosen)
    names = [f"`{one.sampler}` ({count})" for one, count in counted.items()]
    drops = [f"{one.drop:+.4f} [{one.low:+.4f}, {one.high:+.4f}]" for one in counted]
    return {
        "task": f"`{finding.task}`",
        "certified (of the seeds)": ", ".join(names),
        "drop on the check": ", ".join(drops),
        "held": f"{finding.num_held(max_drop)} of {len(finding.chosen)}",
        "fewer forwards": f"{speedup:.1f}x",
        "possible": f"{best.speedup:.1f}x, `{best.sampler}`",
        "drawn calibrations that broke the promise": finding.drawn.num_broken,
        "fewer forwards of the drawn": f"{finding.drawn.speedup:.1f}x",
    }


if __name__ == "__main__":
    run_main(main, stopped="Stopped; records are kept, the same command goes on from here.")
