"""Decodes settings from cautious to bold, until one cannot be certified; returns the card."""

from collections.abc import Sequence

from eval.runs.provenance import now
from eval.runs.records import Record, score_of
from eval.runs.reporter import Reporter
from eval.runs.runner import Checked, RecordPart, Worker
from eval.studies.card import Card, Rating, name_of
from eval.studies.procedure import Guarantee, Pairs, certify


def calibrate(
    reference: Checked,
    ladder: Sequence[Checked],
    guarantee: Guarantee,
    part: RecordPart,
    reporter: Reporter,
) -> Card:
    """Compares settings, from cautious to bold, with the reference; decodes no more than it needs.

    Raises ValueError if a score is undefined, or the reference raised.
    """
    looked: list[list[Record]] = []

    def records_of(checked: Checked) -> list[Record]:
        batches = Worker(checked, part, reporter).decode_missing()
        return [record for batch in batches for record in batch]

    def pairs(checked: Checked) -> Pairs:
        looked.append(records_of(checked))
        return list(zip(reference_scores, map(_score, looked[-1]), strict=True))

    reference_records = records_of(reference)
    _require_answered(reference_records)
    reference_scores = [_score(record) for record in reference_records]
    verdicts = certify(map(pairs, ladder), guarantee)
    ratings = tuple(
        Rating(checked.settings.written(), verdict, _speed(records))
        for checked, verdict, records in zip(ladder, verdicts, looked, strict=False)
    )
    certified = [rating for rating in ratings if rating.verdict.certified]
    best = max(certified, key=lambda rating: rating.tokens_per_forward, default=None)
    return Card(
        setting=best.setting if best else reference.settings.written(),
        expressions={},
        is_certified=best is not None,
        guarantee=guarantee,
        reference=reference.settings.written(),
        reference_tokens_per_forward=_speed(reference_records),
        ratings=ratings,
        untested=tuple(name_of(checked.settings.written()) for checked in ladder[len(verdicts) :]),
        warnings=(),
        machine={},
        date=now(),
    )


def _score(record: Record) -> float:
    score = score_of(record)
    if score is None:
        raise ValueError(
            f"The score {record['primary']!r} must be defined for every answer, got none for "
            f"{record['example']}; choose another task."
        )
    return float(score)


def _require_answered(records: Sequence[Record]) -> None:
    for record in records:
        if record["error"] is not None:
            raise ValueError(
                f"The reference must answer every prompt, got {record['error']} for "
                f"{record['example']}; --retry-errors decodes it anew."
            )


def _speed(records: Sequence[Record]) -> float:
    finished = [record for record in records if record["error"] is None]
    forwards = sum(record["nfe"] + record["target_nfe"] for record in finished)
    return sum(record["length"] for record in finished) / forwards if forwards else 0.0
