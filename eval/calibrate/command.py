"""The command `calibrate`: settings from cautious to bold, decoded as far as the tests need."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from msgspec import structs
from rich.console import Console

from eval.calibrate.card import Card, Rating, name_of
from eval.calibrate.ladders import LADDERS, rung_of
from eval.calibrate.procedure import Guarantee, Pairs, certify
from eval.metrics.statistics import mean
from eval.runs.command import code_for, open_model, warn_of_unknown_words
from eval.runs.files import read_object, require_file, write_json
from eval.runs.names import Selection, parse_task
from eval.runs.options import given_of
from eval.runs.progress import SILENT, Reporter, reporter_for
from eval.runs.provenance import machine_of, now
from eval.runs.records import Folder, Record, Settings, digest
from eval.runs.runner import Checked, done_of, plan_of
from eval.runs.settings import Place
from eval.runs.sweep import Parts
from eval.runs.worker import Worker
from eval.tasks import Example, Task

CARD_FILE, CHOICES_FILE = "card.json", "calibrations.json"


@dataclass
class BatchDecoder:
    """Decodes batches of settings as the tests ask for them, and keeps the records.

    Attributes:
        part: Where records go.
        machine: Name of the folder's note on this process.
        done: Records by key.
        reporter: Follows the progress.
    """

    part: Path
    machine: str
    done: dict[str, Record]
    reporter: Reporter

    def batches(
        self, one: Checked, first: int = 0, *, reporter: Reporter | None = None
    ) -> Iterator[list[Record]]:
        """Yields the records of each batch from the example `first` on."""
        reporter = reporter or self.reporter
        worker = Worker(one.run, one.settings, self.part, reporter, self.machine)
        keys = [one.settings.key(example.id) for example in one.examples]
        reporter.begin(
            worker.label, len(one.examples), [self.done[key] for key in keys if key in self.done]
        )
        for index in range(first // one.run.batch_size, worker.num_batches(one.examples)):
            records = worker.finish_batch(one.examples, index, self.done)
            self.done |= {record["key"]: record for record in records}
            skipped = max(0, first - index * one.run.batch_size)
            yield records[skipped:]


def run(options: argparse.Namespace) -> int:
    """Calibrates, writes the card and shows it; 0 if a setting is certified, 1 if none is."""
    guarantee = Guarantee(options.max_drop, options.confidence, options.test)
    place = Place.of_launch()
    if place.world_size > 1:
        raise ValueError(
            "calibrate must run in one process, got several: decode the settings with `sweep` "
            "into the same folder first; their records are used."
        )
    folder = Folder(options.out)
    folder.require_usable()
    card_file = require_file("--card", options.card) if options.card else folder.path / CARD_FILE
    rungs = _rungs(options)
    selection = parse_task(options.task, code_for(options))
    selection.task.require_scorable()
    examples = selection.examples()
    selection.require_scores(examples)
    _require_distinct(examples)
    if not 0 <= options.order_on < len(examples):
        raise ValueError(
            f"--order-on must be between 0 and {len(examples) - 1}, got {options.order_on}."
        )
    checked = _checked(options, rungs, selection)
    settings = [one.settings for one in checked]
    folder.claim(settings)
    warnings = _warnings(folder, selection, settings, options, guarantee)
    for warning in warnings:
        sys.stderr.write(f"WARNING: {warning}\n")
    warn_of_unknown_words(checked)
    machine = machine_of(checked[0].run.model.device)
    with folder.writing(0) as part, reporter_for(Console(stderr=True)) as reporter:
        done = done_of(folder, checked, retry_errors=options.retry_errors)
        decoder = BatchDecoder(part, folder.note_machine(machine), done, reporter)
        card = calibrate(
            checked[0], checked[1:], guarantee, decoder,
            agreement=options.agreement, order_on=options.order_on,
        )  # fmt: skip
    given = {one.settings.key(""): rung for one, rung in zip(checked, rungs, strict=True)}
    chosen = given[Settings.of(dict(card.setting)).key("")]
    expressions = {name: text for name, text in asdict(chosen).items() if name != "model"}
    card = structs.replace(card, expressions=expressions, warnings=tuple(warnings), machine=machine)
    card.write(card_file)
    Console().print(card.text(), markup=False, highlight=False, soft_wrap=True, end="")
    return 0 if card.is_certified else 1


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

    Args:
        reference: What they are compared with.
        ladder: The settings, in their order; with `order_on` in any.
        guarantee: What is to be certified.
        decoder: Decodes and keeps the records.
        agreement: Compare answers with the reference's, rather than scores.
        order_on: Learn the order on the first so many prompts, and test on the others.

    Raises:
        ValueError: If a score is undefined, or the reference raised.
    """
    score = _agreement_of(reference.run.selection.task) if agreement else _scores_of
    ordered = list(ladder)
    if order_on:
        ordered = _learned(reference, ladder, decoder, score, order_on)
    looked: list[list[Record]] = [[] for _ in ordered]

    def pairs(index: int) -> Callable[[], Iterator[Pairs]]:
        def paired() -> Iterator[Pairs]:
            both = zip(
                # It is decoded as far as the setting is: a display of its own would come and go.
                decoder.batches(reference, order_on, reporter=SILENT),
                decoder.batches(ordered[index], order_on),
                strict=True,
            )
            for first, second in both:
                looked[index] += second
                yield [score(a, c) for a, c in zip(first, second, strict=True)]

        return paired

    verdicts = certify([pairs(index) for index in range(len(ordered))], guarantee)
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
        # An error is a wrong answer.
        score = 0.0 if record["error"] is not None else record["scores"][record["primary"]]
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
    first = _first(decoder, reference, order_on)
    ranked = []
    for index, one in enumerate(ladder):
        records = _first(decoder, one, order_on)
        pairs = [score(a, c) for a, c in zip(first, records, strict=True)]
        ranked.append((mean([a - c for a, c in pairs]), -_speed(records), index))
    kept: list[Checked] = []
    fastest = 0.0
    for _, slowness, index in sorted(ranked):
        if -slowness > fastest:
            kept.append(ladder[index])
            fastest = -slowness
    return kept


def _first(decoder: BatchDecoder, one: Checked, count: int) -> list[Record]:
    found: list[Record] = []
    for batch in decoder.batches(one):
        found += batch
        if len(found) >= count:
            break
    return found[:count]


def _speed(records: Sequence[Record]) -> float:
    finished = [record for record in records if record["error"] is None]
    forwards = sum(record["nfe"] + record["target_nfe"] for record in finished)
    return sum(record["length"] for record in finished) / forwards if forwards else 0.0


def _rungs(options: argparse.Namespace) -> list[Parts]:
    """Returns the reference and the ladder."""
    if bool(options.settings) == bool(options.ladder):
        raise ValueError("Give the settings with --sampler, or a --ladder: one of the two.")
    texts = options.settings or LADDERS[options.ladder]
    own = {"cache": options.cache, "verifier": options.verifier, "blocks": options.blocks}
    rungs = [rung_of(text, **own) for text in texts]
    twice = [rung for rung, count in Counter(rungs).items() if count > 1]
    if twice:
        raise ValueError(f"Settings must be distinct, got {twice[0].sampler} twice.")
    return [rung_of(options.reference), *rungs]


def _require_distinct(examples: Sequence[Example]) -> None:
    """Refuses prompts that are there twice: they are not independent."""
    prompts = Counter(json.dumps(example.prompt, sort_keys=True) for example in examples)
    repeated = [prompt for prompt, count in prompts.items() if count > 1]
    if repeated:
        raise ValueError(
            f"Prompts of a calibration must be distinct, got {repeated[0][:60]} "
            f"{prompts[repeated[0]]} times: each counts once."
        )


def _checked(
    options: argparse.Namespace, rungs: Sequence[Parts], selection: Selection
) -> list[Checked]:
    sources = dict.fromkeys(rung.model or options.model for rung in rungs)
    loaded = {source: open_model(source, options, options.revision) for source in sources}
    runs = [
        replace(
            loaded[rung.model or options.model].run(selection, rung, given_of(options)),
            batch_size=options.batch_size, prompts=options.prompts or None,
            trace=not options.no_trace,
        )
        for rung in rungs
    ]  # fmt: skip
    return plan_of(runs).runs


def _warnings(
    folder: Folder,
    selection: Selection,
    settings: Sequence[Settings],
    options: argparse.Namespace,
    guarantee: Guarantee,
) -> list[str]:
    """Notes this calibration's choices; tells what may have been chosen after looking."""
    found = []
    if selection.split == "train":
        found.append("The model may have been trained on the split 'train'.")
    known = {record["settings"] for record in folder.records()}
    seen = [one for one in settings[1:] if one.key("") in known]
    choice = digest([
        [one.written() for one in settings], options.agreement, options.order_on,
        guarantee.max_drop, guarantee.confidence, guarantee.test,
    ])  # fmt: skip
    earlier = _earlier(folder)
    others = [
        name for name, own in earlier.items() if name != choice and own == settings[0].examples
    ]
    if others:
        found.append(
            "These prompts were calibrated on before, with other settings or numbers: chosen "
            "after looking, they void the guarantee. Take other prompts (examples_seed, split)."
        )
    elif seen and choice not in earlier:
        found.append(
            f"{len(seen)} of the settings had records before: the guarantee holds only if the "
            "list was chosen without looking at them."
        )
    write_json(folder.path / CHOICES_FILE, {**earlier, choice: settings[0].examples})
    return found


def _earlier(folder: Folder) -> dict[str, str]:
    file = folder.path / CHOICES_FILE
    found: dict[str, str] = (
        read_object(file, dict[str, str], remedy="move it elsewhere") if file.exists() else {}
    )
    return found
