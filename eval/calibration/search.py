"""Decodes settings from cautious to bold, until one cannot be certified; returns the card."""

from collections.abc import Sequence
from dataclasses import asdict

from eval.calibration.card import Card, Rating, name_of
from eval.calibration.procedure import Guarantee, certify
from eval.runs.provenance import machine_of, now
from eval.runs.records import Record, score_of
from eval.runs.reporter import Reporter
from eval.runs.runner import PlannedRun, RecordPart, Worker
from eval.runs.settings import RunParts


def certified_card(
    planned_runs: Sequence[PlannedRun],
    expressions: Sequence[RunParts],
    guarantee: Guarantee,
    part: RecordPart,
    reporter: Reporter,
    *,
    warnings: Sequence[str],
) -> Card:
    """Returns the card of settings, from cautious to bold, after the first one, the reference.

    Decodes no more than the test needs. `expressions` are the settings as the user gave them.
    Raises ValueError if a score is undefined, or the reference raised.
    """
    looked: list[list[Record]] = []

    def scores_of(planned: PlannedRun) -> list[float]:
        batches = Worker(planned, part, reporter).decode_missing()
        looked.append([record for batch in batches for record in batch])
        return [_score(record) for record in looked[-1]]

    reference, *ladder = planned_runs
    reference_scores = scores_of(reference)
    _require_answered(looked[0])
    pairs = (list(zip(reference_scores, scores_of(planned), strict=True)) for planned in ladder)
    verdicts = certify(pairs, guarantee)
    speeds = [_speed(records) for records in looked]
    written = [planned.settings.written() for planned in planned_runs]
    num_certified = sum(verdict.certified for verdict in verdicts)
    # The reference is the first; only the last verdict may be without a certificate.
    best = max(range(1, num_certified + 1), key=speeds.__getitem__, default=0)
    chosen = asdict(expressions[best])
    return Card(
        setting=written[best],
        expressions={name: text for name, text in chosen.items() if name != "model"},
        is_certified=best > 0,
        guarantee=guarantee,
        reference=written[0],
        reference_tokens_per_forward=speeds[0],
        ratings=tuple(map(Rating, written[1:], verdicts, speeds[1:])),
        untested=tuple(map(name_of, written[len(looked) :])),
        warnings=tuple(warnings),
        machine=machine_of(reference.run.model.device),
        date=now(),
    )


def _score(record: Record) -> float:
    score = score_of(record)
    if score is None:
        raise ValueError(
            f"The score {record['primary']!r} must be defined for every answer, got none for "
            f"{record['example']}; install the extra that the score needs, or choose another task."
        )
    return float(score)


def _require_answered(records: Sequence[Record]) -> None:
    for record in records:
        if record["error"] is not None:
            raise ValueError(
                f"The reference must answer every prompt, got {record['error']} for "
                f"{record['example']}; the same command decodes it anew."
            )


def _speed(records: Sequence[Record]) -> float:
    finished = [record for record in records if record["error"] is None]
    forwards = sum(record["nfe"] + record["target_nfe"] for record in finished)
    return sum(record["length"] for record in finished) / forwards if forwards else 0.0
