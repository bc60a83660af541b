"""Accuracy and forwards of a sampler or a model on held-out prompts."""

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dllm_decode.settings.files import ANEW, read_object, write_json
from dllm_decode.settings.ranks import ALONE, ProcessRank
from eval.metrics.statistics import mean, share_interval
from eval.runs.provenance import machine_of
from eval.runs.records import ScoredExample
from eval.runs.scoring import batch_seed, decode_and_score
from eval.runs.settings import Run
from eval.tasks import Example
from eval.training.questions import Questions
from samplers.expression import expression_of


class HeldOutScores(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measurements, with an entry for each prompt.

    Attributes:
        scores: The task's first score, in [0, 1].
        forwards: Forwards that the row took part in.
    """

    scores: list[Annotated[float, Meta(ge=0, le=1)]]
    forwards: list[Annotated[int, Meta(ge=1)]]

    @property
    def point(self) -> dict[str, float]:
        """Accuracy with its 95 per cent interval, see `share_interval`, and forwards a prompt."""
        is_binary = all(score in (0, 1) for score in self.scores)
        _, bounds = share_interval(self.scores, is_binary=is_binary)
        return {
            "accuracy": mean(self.scores), **bounds._asdict(), "forwards": mean(self.forwards),
        }  # fmt: skip

    def said(self, label: str) -> str:
        """Returns a line for the terminal."""
        point = self.point
        return (
            f"{label}: accuracy {point['accuracy']:.3f} [{point['low']:.3f}, {point['high']:.3f}], "
            f"{point['forwards']:.2f} forwards a prompt"
        )

    def save(self, file: Path) -> None:
        """Writes the measurements as JSON."""
        write_json(file, msgspec.to_builtins(self))


def score_held_out(
    run: Run,
    examples: Sequence[Example],
    *,
    process: ProcessRank = ALONE,
    gather: Callable[[list[Any]], list[Any]] = lambda results: results,
) -> HeldOutScores:
    """Decodes and scores examples of the task of a run.

    Several processes, of which `process` is this one, share the batches, and `gather` joins their
    lists. Raises ValueError if a score is undefined.
    """
    size, results = run.batch_size, []
    for start in range(0, len(examples), size)[process.rank :: process.world_size]:
        seed = batch_seed(run.config.seed, start // size)
        batch = examples[start : start + size]
        records = decode_and_score(run, batch, replace(run.config, seed=seed))
        for i, (example, record) in enumerate(zip(batch, records, strict=True), start):
            score = defined_score(run, example, record)
            results.append((i, score, record["nfe"]))
    _, scores, forwards = map(list, zip(*sorted(gather(results)), strict=True))
    return HeldOutScores(scores, forwards)


def read_scores(file: Path, questions: Questions) -> HeldOutScores:
    """Reads measurements; ValueError if damaged, or of another number of prompts."""
    scores: HeldOutScores = read_object(file, HeldOutScores)
    count = len(questions.examples)
    for name, values in msgspec.structs.asdict(scores).items():
        if len(values) != count:
            raise ValueError(
                f"{file} must have {count} {name}, one for each prompt, got {len(values)}; {ANEW}."
            )
    return scores


def defined_score(run: Run, example: Example, record: ScoredExample) -> float:
    """Returns the task's first score of an answer; raises ValueError if it is undefined."""
    primary = run.selection.task.primary
    score = None if record["error"] else record["scores"][primary]
    if score is None:
        raise ValueError(
            f"Answers to {run.selection.address} must have a score {primary!r}, got "
            f"{record['error'] or 'one without'}: example {example.id}."
        )
    return score


def description_of(command: str, run: Run, questions: Questions) -> dict[str, Any]:
    """Returns the part of a report that says what was measured, ready for JSON."""
    return {
        "command": shlex.join(["dllm-decode", command, *sys.argv[2:]]),
        "model": run.model.name,
        "held_out": questions.described(),
        "config": repr(run.config),
        "cache": expression_of(run.cache),
        "machine": machine_of(run.model.device),
    }
