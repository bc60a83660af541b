"""Calibrates: settings from cautious to bold are decoded until one fails the test."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console

from dllm_decode.settings.files import digest, output_file, read_object, write_json
from dllm_decode.settings.models import open_model
from dllm_decode.settings.options import given_options
from dllm_decode.settings.ranks import ProcessRank
from eval.calibration.ladders import LADDERS, rung_of
from eval.calibration.procedure import Guarantee
from eval.calibration.search import certified_card
from eval.runs.folder import Folder
from eval.runs.reporter import Reporter
from eval.runs.runner import PlannedRun, open_part, plan_runs, warn_of_runs
from eval.runs.settings import RunParts, RunSettings, run_of
from eval.runs.task_addresses import Selection, parse_task

CARD_FILE, CHOICES_FILE = "card.json", "calibrations.json"


def calibrate(options: argparse.Namespace) -> int:
    """Calibrates, writes the card and shows it; 0 if a setting is certified, 1 if none is."""
    guarantee = Guarantee(options.max_drop, options.confidence)
    process = ProcessRank.of_launch()
    if process.world_size > 1:
        raise ValueError(
            "calibrate must run in one process, got several: decode the settings with `sweep` "
            "into the same folder first; their records are used."
        )
    folder = Folder(options.out)
    folder.require_usable()
    card_file = output_file("--card", options.card) if options.card else folder.path / CARD_FILE
    rungs = _rungs(options)
    selection = _selection(options, guarantee)
    planned_runs = _planned_runs(options, rungs, selection)
    settings = [planned.settings for planned in planned_runs]
    with open_part(folder, planned_runs) as part:
        folder.claim(settings)
        warnings = _warnings(folder, selection, settings, guarantee)
        for warning in warnings:
            sys.stderr.write(f"WARNING: {warning}\n")
        warn_of_runs(planned_runs)
        with Reporter(Console(stderr=True)) as reporter:
            card = certified_card(planned_runs, rungs, guarantee, part, reporter, warnings=warnings)
    card.write(card_file)
    console = Console(highlight=False)
    console.print(card.text(), markup=False, soft_wrap=not console.is_terminal, end="")
    return 0 if card.is_certified else 1


def _selection(options: argparse.Namespace, guarantee: Guarantee) -> Selection:
    """Returns the examples.

    Raises ValueError if they cannot be scored, a prompt comes twice, or they can certify nothing.
    """
    selection = parse_task(options.task)
    examples = selection.examples()
    selection.require_scores(examples)
    # Equal prompts are not independent.
    prompts = Counter(json.dumps(example.prompt, sort_keys=True) for example in examples)
    for prompt, count in prompts.most_common(1):
        if count > 1:
            raise ValueError(
                f"Prompts of a calibration must be distinct, got {prompt[:60]} {count} times: each "
                "counts once."
            )
    least = guarantee.least_prompts
    if len(examples) < least:
        raise ValueError(
            f"A calibration with --max-drop {guarantee.max_drop:g} and --confidence "
            f"{guarantee.confidence:g} must have at least {least} prompts, because fewer certify "
            f"nothing, got {len(examples)}; raise the task's limit or --max-drop."
        )
    return selection


def _rungs(options: argparse.Namespace) -> list[RunParts]:
    """Returns the reference and the ladder."""
    if bool(options.settings) == bool(options.ladder):
        raise ValueError("Give the settings with --sampler, or a --ladder: one of the two.")
    texts = options.settings or LADDERS[options.ladder]
    defaults = {"cache": options.cache, "verifier": options.verifier, "blocks": options.blocks}
    rungs = [rung_of(text, defaults) for text in texts]
    repeated = [rung for rung, count in Counter(rungs).items() if count > 1]
    if repeated:
        raise ValueError(f"Settings must be distinct, got {repeated[0].sampler} twice.")
    return [rung_of(options.reference), *rungs]


def _planned_runs(
    options: argparse.Namespace, rungs: Sequence[RunParts], selection: Selection
) -> list[PlannedRun]:
    sources = dict.fromkeys(rung.model or options.model for rung in rungs)
    loaded = {source: open_model(source, options, options.revision) for source in sources}
    runs = [
        replace(
            run_of(loaded[rung.model or options.model], selection, rung, given_options(options)),
            batch_size=options.batch_size, prompts=options.prompts,
            trace=not options.no_trace,
        )
        for rung in rungs
    ]  # fmt: skip
    return plan_runs(runs)


def _warnings(
    folder: Folder,
    selection: Selection,
    settings: Sequence[RunSettings],
    guarantee: Guarantee,
) -> list[str]:
    """Records the calibration's choices; returns reasons why the guarantee may be void."""
    warnings = []
    if selection.split == "train":
        warnings.append("The model may have been trained on the split 'train'.")
    tested_keys = {setting.key("") for setting in settings[1:]}
    records = [record for record in folder.records() if record["settings"] in tested_keys]
    num_errors = sum(record["error"] is not None for record in records)
    if num_errors:
        warnings.append(
            f"Answers with an error, which score 0, are decoded anew ({num_errors} of the tested "
            "settings): a setting may be certified only because the command was repeated."
        )
    written = [setting.written() for setting in settings]
    choice = digest([written, guarantee.max_drop, guarantee.confidence])
    file = folder.path / CHOICES_FILE
    earlier: dict[str, list[str]] = (
        read_object(file, dict[str, list[str]], remedy="move it elsewhere") if file.exists() else {}
    )
    prompts = [digest(example.prompt) for example in selection.examples()]
    if any(set(prompts) & set(seen) for name, seen in earlier.items() if name != choice):
        warnings.append(
            "Some or all of these prompts were calibrated on before, with other settings or "
            "numbers: chosen after looking, they void the guarantee. Take other prompts "
            "(examples_seed, split)."
        )
    elif records and choice not in earlier:
        num_decoded = len({record["settings"] for record in records})
        warnings.append(
            f"{num_decoded} of the settings had records before: the guarantee holds only if the "
            "list was chosen without looking at them."
        )
    write_json(file, {**earlier, choice: prompts})
    return warnings
