"""The commands `report` and `trace`: what a results folder holds."""

import argparse
import sys
from collections import Counter

from rich.console import Console

from dllm_decode.cli.files import require_file, write_text
from eval.metrics.costs import COSTS, CostMeasure, usual_cost
from eval.metrics.curves import asked_of, groups_of, titles_of
from eval.reports.advice import advice
from eval.reports.page import page_of
from eval.reports.replay import parts_of, picture_of, replay_page
from eval.reports.report import PAGE, write_report
from eval.reports.summary import measured
from eval.reports.table import bold, commits, origin, pb_scores, show_settings, table
from eval.runs.folder import Folder
from eval.runs.records import Record
from eval.runs.settings import RunSettings
from eval.runs.sweep import Measured, run, run_sweep
from eval.studies.card import warn_of_misfits


def run_and_report(options: argparse.Namespace) -> int:
    """Runs settings; the process that finds all of them complete writes the report."""
    return _finish(run(options, warn_of_misfits))


def sweep_and_report(options: argparse.Namespace) -> int:
    """Runs a sweep; the process that finds all of it complete writes the report."""
    return _finish(run_sweep(options, warn_of_misfits))


def report(options: argparse.Namespace) -> int:
    """Writes the report of a results folder and shows its table."""
    folder = Folder(options.folder)
    if options.before:
        path = folder.path / "comparison.html"
        found = [measured(Folder(options.before)), measured(folder)]
        write_text(path, page_of(found, cost=COSTS.get(options.cost)))
        _say(Console(highlight=False), f"Comparison: {path}")
    return show(folder, num_replays=options.replays, cost=COSTS.get(options.cost))


def show(folder: Folder, *, num_replays: int = 30, cost: CostMeasure | None = None) -> int:
    """Writes a report as `write_report` does and shows its tables; returns 1 if examples raised."""
    found = measured(folder)
    path = write_report(found, num_replays=num_replays, cost=cost)
    rows = found.summary["rows"]
    console = Console(highlight=False)
    groups = groups_of(row for row in rows if row["num_records"])
    titles = titles_of((group.asked for group in groups), found.summary["machines"])
    has_several = len({group.model for group in groups}) > 1
    for (model, asked), own in groups.items():
        _say(console, f"{titles[asked]}, model {model}" if has_several else titles[asked])
        chosen = cost or usual_cost(own)
        if console.is_terminal:
            show_settings(console, own, chosen)
        else:
            _say(console, table(own, chosen))
        for told in (advice(own, chosen), bold(chosen), origin(own, found.summary), commits(own)):
            if told:
                _say(console, f"\n{told}", folds=console.is_terminal)
        console.print()
    if told := pb_scores(found.summary):
        _say(console, f"{told}\n")
    _say(console, f"Report: {path.with_name(PAGE)} and {path.name}")
    errors = sum(row["num_errors"] for row in rows)
    if errors:
        counted = sum((Counter(row["errors"]) for row in rows), Counter[str]())
        said, count = counted.most_common(1)[0]
        sys.stderr.write(
            f"{errors} examples raised an error, {count} of them: {said}\nSee {path}. Once it is "
            "mended, the command that ran them decodes them anew with --retry-errors.\n"
        )
    return 1 if errors else 0


def trace(options: argparse.Namespace) -> int:
    """Shows how one example was decoded, in the terminal or as a page."""
    page = require_file("--html", options.html) if options.html else None
    found, console = _examples_of(Folder(options.folder), options.example), Console(highlight=False)
    if page:
        write_text(page, replay_page(found))
        _say(console, f"Replay: {options.html}")
        return 0
    first = found[0][1]
    _say(console, f"{first['prompt']}\ntarget: {first['target']}\n", folds=True)
    for (_, record), parts in zip(found, parts_of(found), strict=True):
        counted = f"{record['length']} tokens in {record['nfe']} forwards"
        if record["target_nfe"]:
            counted += f" and {record['target_nfe']} of the target"
        _say(console, f"{' + '.join(parts)}: {counted}, {record['scores']}")
        console.print(picture_of(record), end="\n\n")
    return 0


def _say(console: Console, text: str, *, folds: bool = False) -> None:
    console.print(text, markup=False, soft_wrap=not folds)


def _finish(found: Measured) -> int:
    """Shows the report if the command's records are all there.

    The last of several processes finds it so. Other settings of the folder may be unfinished.
    """
    results = found.folder.results()
    is_done = all(len(results.get(one, ())) == one.num_examples for one in found.settings)
    return show(found.folder) if is_done else 0


def _examples_of(folder: Folder, example: str) -> list[tuple[RunSettings, Record]]:
    found = [
        (settings, record)
        for settings, records in folder.results().items()
        for record in records
        if record["error"] is None
    ]
    ids = [r["example"] for _, r in found]
    # The id itself comes before longer ones.
    chosen = sorted((one for one in ids if one.startswith(example)), key=lambda one: one != example)
    if not chosen:
        raise ValueError(
            f"{folder.path} has no finished example whose id starts with {example!r}; "
            f"it has {', '.join(sorted(set(ids))[:5]) or 'none'}."
        )
    pairs = [pair for pair in found if pair[1]["example"] == chosen[0]]
    asked = asked_of(pairs[0][0].written())
    return [(settings, r) for settings, r in pairs if asked_of(settings.written()) == asked]
