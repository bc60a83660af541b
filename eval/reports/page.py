"""The report as a page: settings, picture and every example of a results folder."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from eval.metrics.costs import COSTS, CostMeasure, SummaryRow, speed_of, usual_cost
from eval.metrics.curves import ExampleSet, RowGroup, group_of, method_of, titles_of
from eval.reports.advice import advice
from eval.reports.pooling import Pooled, identity
from eval.reports.setting_names import names_of
from eval.reports.summary import FolderSummary, summarise
from eval.reports.table import further_tables, origin
from eval.reports.templates import fill
from eval.runs.folder import Folder
from eval.runs.records import Record

Link = Mapping[tuple[ExampleSet, str], str]
"""The file that replays an example, by set of examples and id."""


class _Setting(NamedTuple):
    """A setting of the page: its numbers and its records."""

    row: SummaryRow
    pool: Pooled


def report_page(folder: Folder) -> str:
    """Returns the page of a results folder; raises ValueError if it is damaged or empty."""
    return page_of(summarise(folder))


def page_of(
    contents: FolderSummary, *, replays: Link | None = None, cost: CostMeasure | None = None
) -> str:
    """Returns a page with everything that a results folder holds.

    `replays` maps examples to files in the page's folder; `cost` is shown first (None:
    `usual_cost`).
    """
    summary = contents.summary
    groups: dict[RowGroup, list[_Setting]] = {}
    for row, pool in zip(summary["rows"], contents.pools, strict=True):
        groups.setdefault(group_of(row["settings"]), []).append(_Setting(row, pool))
    titles = titles_of(group.example_set for group in groups)
    tasks = []
    for group, settings in groups.items():
        rows = [setting.row for setting in settings]
        tasks.append({
            "task": titles[group.example_set],
            "model": group.model,
            "rows": _shown(settings),
            "examples": _examples(settings, group.example_set, replays or {}),
            "origin": origin(rows, summary), "cost": (cost or usual_cost(rows)).name,
            "advice": {measure.name: advice(rows, measure) for measure in COSTS.values()},
            "tables": "\n\n".join(further_tables(rows, summary)),
        })  # fmt: skip
    name, notice = contents.folder.path.resolve().name, unfinished_notice(summary["rows"])
    content = {
        "folder": name, "notice": notice, "tasks": tasks,
        "costs": {measure.name: measure._asdict() for measure in COSTS.values()},
    }  # fmt: skip
    return fill("report", title=f"{name}{' (unfinished)' if notice else ''}", content=content)


def unfinished_notice(rows: Iterable[SummaryRow]) -> str:
    """Says that records are missing; empty if none are."""
    counts = [(row["num_missing"], row["num_records"]) for row in rows]
    missing, present = (sum(column) for column in zip(*counts, strict=True))
    if not missing:
        return ""
    total = missing + present
    return f"Unfinished: {missing} of {total} examples are missing, so every number may change."


def _shown(settings: Sequence[_Setting]) -> list[dict[str, Any]]:
    """Returns the numbers that the page shows, as a flat dictionary for each setting."""
    rows = [setting.row for setting in settings]
    names = zip(settings, names_of(rows), names_of(rows, short=False), strict=True)
    return [
        {
            "name": name, "full": full, "method": method_of(row["settings"]),
            **_numbers(row),
            "keys": [pool.settings.with_seed(seed).key("") for seed in pool.seeds],
        }
        for (row, pool), name, full in names
    ]  # fmt: skip


def _numbers(row: SummaryRow) -> dict[str, Any]:
    """Returns the numbers of a setting as the page's template reads them; None if not measured."""
    against, speed, timing = (row.get(name) or {} for name in _PARTS)
    verified = row.get("verified") or {}
    return {
        "accuracy": _interval(row["accuracy"]),
        "difference": _interval(against.get("accuracy")),
        "p_value": (against.get("mcnemar") or {}).get("p_value"),
        "tokens_per_forward": _interval(speed.get("tokens_per_forward")),
        "speeds": {name: _interval(speed_of(row, cost)) for name, cost in COSTS.items()},
        "nfe": speed.get("nfe"),
        "columns": speed.get("query_positions"),
        "target_nfe": speed.get("target_nfe"),
        "step_speedup": against.get("step_speedup", 1.0) if speed else None,
        "tokens_per_second": timing.get("tokens_per_second"),
        "tau": (row.get("order") or {}).get("order_correlation"),
        "decided": row.get("decided"),
        "decided_at": (row.get("decided") or {}).get("share"),
        "accepted_length": verified.get("accepted_length"),
        "acceptance_rate": verified.get("acceptance_rate"),
        "errors": row["num_errors"],
        "missing": row["num_missing"],
        "expected": row["num_missing"] + row["num_records"],
        "fronts": row["fronts"],
    }


_PARTS = ("against_reference", "speed", "timing")


def _interval(estimate: Mapping[str, Any] | None) -> list[float] | None:
    return [estimate["value"], estimate["low"], estimate["high"]] if estimate else None


def _examples(
    settings: Sequence[_Setting], example_set: ExampleSet, replays: Link
) -> list[dict[str, Any]]:
    """Lists every example with each setting's answers; None where an answer is missing."""
    cells: dict[tuple[str, str, str], list[list[dict[str, Any]] | None]] = {}
    for number, (_, pool) in enumerate(settings):
        seeds = {pool.settings.with_seed(seed).key(""): seed for seed in pool.seeds}
        for record in pool.records:
            row = cells.setdefault(identity(record), [None] * len(settings))
            row[number] = [*(row[number] or []), _answer(record, seeds)]
    return [
        {"id": example, "prompt": prompt, "target": target,
         "replay": replays.get((example_set, example)), "cells": cells[example, prompt, target]}
        for example, prompt, target in sorted(cells, key=lambda key: _natural(key[0]))
    ]  # fmt: skip


def _answer(record: Record, seeds: Mapping[str, int]) -> dict[str, Any]:
    scores = record.get("scores") or {}
    return {
        "seed": seeds[record["settings"]],
        "score": 0.0 if record["error"] else scores.get(record["primary"]),
        "text": record.get("text", ""),
        "length": record.get("length"),
        "nfe": record.get("nfe"),
        "error": record["error"],
    }


def _natural(text: str) -> tuple[int, int, str]:
    """Returns a sort key that puts numbers first, in the order of their values."""
    return (0, int(text), text) if text.isdecimal() else (1, 0, text)
