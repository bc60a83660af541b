"""Decodes settings from cautious to bold, as far as the tests need; returns the card."""

from collections.abc import Callable, Iterator, Sequence

from eval.runs.provenance import now
from eval.runs.records import Record, score_of
from eval.runs.reporter import Reporter
from eval.runs.runner import Checked, RecordPart, Worker
from eval.studies.card import Card, Rating, name_of
from eval.studies.procedure import Guarantee, Pairs, certify
from eval.tasks import Task


def calibrate(
    reference: Checked,
    ladder: Sequence[Checked],
    guarantee: Guarantee,
    part: RecordPart,
    reporter: Reporter,
    *,
    agreement: bool = False,
) -> Card:
    """Tests settings from cautious to bold and decodes no more than the tests need.

    Settings of the ladder are compared with the reference, in their order: by scores, or with
    `agreement` by answers that equal the reference's. Raises ValueError if a score is undefined, or
    the reference raised.
    """
    score = _agreement_of(reference.run.selection.task) if agreement else _scores_of
    looked: list[list[Record]] = [[] for _ in ladder]

    def pairs(checked: Checked, looked_at: list[Record]) -> Iterator[Pairs]:
        # The reference is decoded in step with the setting: its own display would come and go.
        reference_batches = Worker(reference, part).decode_missing()
        batches = Worker(checked, part, reporter).decode_missing()
        for first, second in zip(reference_batches, batches, strict=True):
            looked_at += second
            yield [score(a, c) for a, c in zip(first, second, strict=True)]

    verdicts = certify(map(pairs, ladder, looked), guarantee)
    ratings = tuple(
        Rating(checked.settings.written(), verdict, _speed(records))
        for checked, verdict, records in zip(ladder, verdicts, looked, strict=False)
    )
    certified = [rating for rating in ratings if rating.verdict.certified]
    keys = {reference.settings.key(example.id) for example in reference.examples}
    reference_records = [record for key, record in part.done.items() if key in keys]
    best = max(certified, key=lambda rating: rating.tokens_per_forward, default=None)
    return Card(
        setting=best.setting if best else reference.settings.written(),
        expressions={},
        is_certified=best is not None,
        guarantee=guarantee,
        agreement=agreement,
        reference=reference.settings.written(),
        reference_tokens_per_forward=_speed(reference_records),
        ratings=ratings,
        untested=tuple(name_of(checked.settings.written()) for checked in ladder[len(verdicts) :]),
        warnings=(),
        machine={},
        date=now(),
    )


Score = Callable[[Record, Record], tuple[float, float]]


def _scores_of(first: Record, second: Record) -> tuple[float, float]:
    _require_answered(first)
    scores = []
    for record in (first, second):
        score = score_of(record)
        if score is None:
            raise ValueError(
                f"The score {record['primary']!r} must be defined for every answer, got none for "
                f"{record['example']}; choose --agreement or another task."
            )
        scores.append(float(score))
    return scores[0], scores[1]


def _agreement_of(task: Task) -> Score:
    def agrees(first: Record, second: Record) -> tuple[float, float]:
        _require_answered(first)
        equal = second["error"] is None and task.extract(first["text"]) == task.extract(
            second["text"]
        )
        return 1.0, float(equal)

    return agrees


def _require_answered(record: Record) -> None:
    if record["error"] is not None:
        raise ValueError(
            f"The reference must answer every prompt, got {record['error']} for "
            f"{record['example']}; the same command decodes it anew."
        )


def _speed(records: Sequence[Record]) -> float:
    finished = [record for record in records if record["error"] is None]
    forwards = sum(record["nfe"] + record["target_nfe"] for record in finished)
    return sum(record["length"] for record in finished) / forwards if forwards else 0.0
