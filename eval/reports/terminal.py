"""Reports a results folder, or shows one of its examples, on the terminal."""

import sys
from collections import Counter

from rich.console import Console

from eval.metrics.costs import CostMeasure, usual_cost
from eval.metrics.curves import example_set_of, groups_of, titles_of
from eval.reports.advice import advice
from eval.reports.page import unfinished_notice
from eval.reports.replay import picture_of, setting_names_of
from eval.reports.report import write_report
from eval.reports.summary import summarise
from eval.reports.table import further_tables, legend, origin, show_settings
from eval.runs.folder import Folder
from eval.runs.records import Record, trace_of
from eval.runs.settings import RunSettings


def report_folder(folder: Folder, *, num_replays: int = 30, cost: CostMeasure | None = None) -> int:
    """Writes a report as `write_report` does and shows its tables; returns 1 if examples raised."""
    contents = summarise(folder)
    path = write_report(contents, num_replays=num_replays, cost=cost)
    rows = contents.summary["rows"]
    console = Console(highlight=False)
    if notice := unfinished_notice(rows):
        _say(console, f"{notice}\n", folds=console.is_terminal)
    groups = groups_of(row for row in rows if row["num_records"])
    titles = titles_of(group.example_set for group in groups)
    has_several = len({group.model for group in groups}) > 1
    for group, group_rows in groups.items():
        title = titles[group.example_set] + f", model {group.model}" * has_several
        _say(console, f"{title}\n")
        chosen = cost or usual_cost(group_rows)
        show_settings(console, group_rows, chosen)
        texts = [advice(group_rows, chosen), legend(chosen), origin(group_rows, contents.summary)]
        if not console.is_terminal:
            texts += further_tables(group_rows, contents.summary)
        for text in texts:
            if text:
                _say(console, f"\n{text}", folds=console.is_terminal)
        console.print()
    _say(console, f"Report: {path}")
    errors = sum(row["num_errors"] for row in rows)
    if errors:
        counted = sum((Counter(row["errors"]) for row in rows), Counter[str]())
        error, count = counted.most_common(1)[0]
        sys.stderr.write(
            f"{errors} examples raised an error, {count} of them: {error}\nSee {path}. To decode "
            "these examples again, repeat the command that ran them.\n"
        )
    return 1 if errors else 0


def show_example(folder: Folder, example: str) -> int:
    """Shows how an example was decoded, given its id or the start of it; the first if empty.

    Raises ValueError if no finished example has such an id, or its records have no trace.
    """
    pairs, console = _examples_of(folder, example), Console(highlight=False)
    first = pairs[0][1]
    _say(console, f"{first['prompt']}\ntarget: {first['target']}\n", folds=True)
    for (_, record), parts in zip(pairs, setting_names_of(pairs), strict=True):
        counted = f"{record['length']} tokens in {record['nfe']} forwards"
        if record["target_nfe"]:
            counted += f" and {record['target_nfe']} of the target"
        if decided := trace_of(record).get("decided"):
            counted += ", result decided at step {} of {}".format(*decided)
        _say(console, f"{' + '.join(parts)}: {counted}, {record['scores']}")
        console.print(picture_of(record), end="\n\n")
    return 0


def _say(console: Console, text: str, *, folds: bool = False) -> None:
    console.print(text, markup=False, soft_wrap=not folds)


def _examples_of(folder: Folder, example: str) -> list[tuple[RunSettings, Record]]:
    finished = [
        (settings, record)
        for settings, records in folder.results().items()
        for record in records
        if record["error"] is None
    ]
    ids = [r["example"] for _, r in finished]
    # An id that matches exactly comes before longer ids.
    chosen = sorted((e for e in ids if e.startswith(example)), key=lambda e: e != example)
    if not chosen:
        raise ValueError(
            f"{folder.path} must have a finished example whose id starts with {example!r}; "
            f"it has {', '.join(sorted(set(ids))[:5]) or 'none'}."
        )
    pairs = [pair for pair in finished if pair[1]["example"] == chosen[0]]
    example_set = example_set_of(pairs[0][0].written())
    return [
        (settings, r) for settings, r in pairs if example_set_of(settings.written()) == example_set
    ]
