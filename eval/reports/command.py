"""The commands `report` and `trace`: what a results folder holds."""

import argparse
import sys
from collections import Counter

from rich.console import Console

from eval.calibrate.card import warn_of_misfits
from eval.metrics.costs import COSTS, Cost, usual_cost
from eval.metrics.curves import asked_of, groups_of, titles_of
from eval.reports.advice import advice
from eval.reports.animation import write_animation
from eval.reports.replay import replay_page
from eval.reports.report import PAGE, write_comparison, write_report
from eval.reports.summary import measured
from eval.reports.table import bold, commits, table
from eval.reports.terminal import picture_of, show_settings
from eval.runs.command import run, run_sweep
from eval.runs.files import require_file, write_text
from eval.runs.records import Folder, Record, Settings


def run_and_report(options: argparse.Namespace) -> int:
    """Runs settings; the process that finds the folder complete writes the report."""
    return _finish(run(options, warn_of_misfits))


def sweep_and_report(options: argparse.Namespace) -> int:
    """Runs a sweep; the process that finds the folder complete writes the report."""
    return _finish(run_sweep(options, warn_of_misfits))


def report(options: argparse.Namespace) -> int:
    """Writes the report of a results folder and shows its table."""
    folder = Folder(options.folder)
    if options.before:
        path = folder.path / "comparison.html"
        write_comparison(Folder(options.before), folder, path)
        _tell(f"Comparison: {path}")
    return show(folder, num_replays=options.replays, cost=COSTS.get(options.cost))


def show(folder: Folder, *, num_replays: int = 30, cost: Cost | None = None) -> int:
    """Writes a report and shows its tables; 1 if examples raised.

    Args:
        folder: The results folder.
        num_replays: Examples of each task that get a replay page.
        cost: Cost that settings are compared by; None is `usual_cost`.
    """
    found = measured(folder)
    path = write_report(found, num_replays=num_replays, cost=cost)
    rows = found.summary["rows"]
    console = Console()
    groups = groups_of(row for row in rows if row["num_records"])
    titles = titles_of(group.asked for group in groups)
    has_several = len({group.model for group in groups}) > 1
    for (model, asked), own in groups.items():
        title = f"{titles[asked]}, model {model}" if has_several else titles[asked]
        console.print(title, markup=False, highlight=False, soft_wrap=True)
        chosen = cost or usual_cost(own)
        if console.is_terminal:
            show_settings(console, own, chosen)
        else:
            console.print(table(own, chosen), markup=False, highlight=False, soft_wrap=True)
        for told in (bold(chosen), advice(own, chosen), commits(own)):
            if told:
                wide = not console.is_terminal
                console.print(f"\n{told}", markup=False, highlight=False, soft_wrap=wide)
        console.print()
    console.print(
        f"Report: {path.with_name(PAGE)} and {path.name}",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip
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
    page, animation = (
        require_file(name, path) if path else None
        for name, path in (("--html", options.html), ("--gif", options.gif))
    )
    found = _examples_of(Folder(options.folder), options.example)
    if page:
        write_text(page, replay_page(found))
        _tell(f"Replay: {options.html}")
    if animation:
        write_animation(found, animation)
        _tell(f"Animation: {options.gif}")
    if page or animation:
        return 0
    console = Console()
    first = found[0][1]
    seeds = {settings.seed for settings, _ in found}
    console.print(f"{first['prompt']}\ntarget: {first['target']}\n", markup=False, highlight=False)
    for settings, record in found:
        counted = f"{record['length']} tokens in {record['nfe']} forwards"
        if record["target_nfe"]:
            counted += f" and {record['target_nfe']} of the target"
        parts = [*settings.parts, *([f"seed {settings.seed}"] if len(seeds) > 1 else [])]
        console.print(
            f"{' + '.join(parts)}: {counted}, {record['scores']}",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
        console.print(picture_of(record), end="\n\n")
    return 0


def _tell(text: str) -> None:
    Console().print(text, markup=False, highlight=False, soft_wrap=True)


def _finish(folder: Folder) -> int:
    return show(folder) if _is_finished(folder) else 0


def _is_finished(folder: Folder) -> bool:
    """Says whether a folder has all records: whichever process is last finds it so."""
    return all(len(own) == run.num_examples for run, own in folder.results().items())


def _examples_of(folder: Folder, example: str) -> list[tuple[Settings, Record]]:
    found = [
        (settings, record)
        for settings, records in folder.results().items()
        for record in records
        if record["error"] is None
    ]
    ids = [r["example"] for _, r in found]
    chosen = [one for one in ids if one.startswith(example)]
    if not chosen:
        raise ValueError(
            f"{folder.path} has no finished example whose id starts with {example!r}; "
            f"it has {', '.join(sorted(set(ids))[:5]) or 'none'}."
        )
    pairs = [pair for pair in found if pair[1]["example"] == chosen[0]]
    asked = asked_of(pairs[0][0].written())
    return [(settings, r) for settings, r in pairs if asked_of(settings.written()) == asked]
