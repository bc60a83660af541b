"""Decodes settings from cautious to bold, as far as the tests need; returns the card."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from eval.calibrate.card import Card, Rating, name_of
from eval.calibrate.procedure import Guarantee, Pairs, certify
from eval.metrics.statistics import mean
from eval.runs.lines import Record, score_of
from eval.runs.progress import SILENT, Reporter
from eval.runs.provenance import now
from eval.runs.runner import Checked, Worker
from eval.runs.settings import ALONE
from eval.tasks import Task


@dataclass
class BatchDecoder:
    """Decodes batches of settings as the tests ask for them, and keeps the records.

    `machine` names the folder's note on this process; `done` has all records by key, also those of
    earlier runs.
    """

    part: Path
    machine: str
    done: dict[str, Record]
    reporter: Reporter

    def batches(
        self, one: Checked, first: int = 0, *, reporter: Reporter | None = None
    ) -> Iterator[list[Record]]:
        """Yields the records of each batch from the example `first` on."""
        worker = Worker(one, self.part, reporter or self.reporter, self.machine)
        worker.begin(self.done, ALONE)
        for index in range(first // one.run.batch_size, len(worker.batches)):
            skipped = max(0, first - index * one.run.batch_size)
            yield worker.finish_batch(index, self.done)[skipped:]


def calibrate(
    reference: Checked,
    ladder: Sequence[Checked],
    guarantee: Guarantee,
    decoder: BatchDecoder,
    *,
    agreement: bool = False,
    order_on: int = 0,
) -> Card:
    """Tests settings from cautious to bold and decodes no more than the tests need.

    Settings of the ladder are compared with the reference, in their order: by scores, or with
    `agreement` by answers that equal the reference's. With `order_on` the order is learned on the
    first so many prompts, and tested on the others. Raises ValueError if a score is undefined, or
    the reference raised.
    """
    score = _agreement_of(reference.run.selection.task) if agreement else _scores_of
    ordered = list(ladder)
    if order_on:
        ordered = _learned(reference, ladder, decoder, score, order_on)
    looked: list[list[Record]] = [[] for _ in ordered]

    def pairs(one: Checked, looked_at: list[Record]) -> Iterator[Pairs]:
        # The reference is decoded as far as the setting: a display of its own would come and go.
        known = decoder.batches(reference, order_on, reporter=SILENT)
        for first, second in zip(known, decoder.batches(one, order_on), strict=True):
            looked_at += second
            yield [score(a, c) for a, c in zip(first, second, strict=True)]

    verdicts = certify(map(pairs, ordered, looked), guarantee)
    ratings = tuple(
        Rating(one.settings.written(), verdict, _speed(records))
        for one, verdict, records in zip(ordered, verdicts, looked, strict=False)
    )
    certified = [rating for rating in ratings if rating.verdict.certified]
    keys = {reference.settings.key(example.id) for example in reference.examples[order_on:]}
    own = [record for key, record in decoder.done.items() if key in keys]
    best = max(certified, key=lambda rating: rating.tokens_per_forward, default=None)
    return Card(
        setting=best.setting if best else reference.settings.written(),
        expressions={},
        is_certified=best is not None,
        guarantee=guarantee,
        agreement=agreement,
        reference=reference.settings.written(),
        reference_tokens_per_forward=_speed(own),
        ratings=ratings,
        untested=tuple(name_of(one.settings.written()) for one in ordered[len(verdicts) :]),
        ordered_on=order_on,
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
            f"{record['example']}; --retry-errors decodes it anew."
        )


def _learned(
    reference: Checked,
    ladder: Sequence[Checked],
    decoder: BatchDecoder,
    score: Score,
    order_on: int,
) -> list[Checked]:
    """Orders settings by their drop on prompts of their own; leaves out those that lose to others.

    Source: Laufer-Goldshtein et al. 2022, "Efficiently Controlling Multiple Risks with Pareto
    Testing", https://arxiv.org/abs/2210.07913, the order of the fixed sequence.
    """

    def first_of(one: Checked) -> list[Record]:
        return list(islice(chain.from_iterable(decoder.batches(one)), order_on))

    first = first_of(reference)
    ranked = []
    for index, one in enumerate(ladder):
        records = first_of(one)
        pairs = [score(a, c) for a, c in zip(first, records, strict=True)]
        ranked.append((mean([a - c for a, c in pairs]), -_speed(records), index))
    kept: list[Checked] = []
    fastest = 0.0
    for _, slowness, index in sorted(ranked):
        if -slowness > fastest:
            kept.append(ladder[index])
            fastest = -slowness
    return kept


def _speed(records: Sequence[Record]) -> float:
    finished = [record for record in records if record["error"] is None]
    forwards = sum(record["nfe"] + record["target_nfe"] for record in finished)
    return sum(record["length"] for record in finished) / forwards if forwards else 0.0
