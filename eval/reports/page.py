"""The report as a page: settings, picture and every example of one or two results folders."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from eval.metrics.costs import COSTS, CostMeasure, Row, is_on_front, speed_of, usual_cost
from eval.metrics.curves import ExampleSet, RowGroup, asked_of, method_of, titles_of
from eval.metrics.statistics import mean
from eval.reports.advice import advice
from eval.reports.comparison import difference
from eval.reports.names import names_of, seeds_of
from eval.reports.pooling import Pool, identity
from eval.reports.summary import MeasuredFolder, measured
from eval.reports.table import commits_of, further_tables, origin
from eval.reports.templates import fill
from eval.runs.folder import Folder
from eval.runs.records import Record

Link = Mapping[tuple[ExampleSet, str], str]
"""The file that replays an example, by set of examples and id."""


class _Setting(NamedTuple):
    """A setting of the page: its numbers, its records and its folder, 0 or 1."""

    row: Row
    pool: Pool
    folder: int


def report_page(folders: Sequence[Folder]) -> str:
    """Returns the page of one results folder, or of two side by side, as `page_of` makes it.

    Raises ValueError if a folder is damaged or empty.
    """
    return page_of([measured(folder) for folder in folders])


def page_of(
    found: Sequence[MeasuredFolder],
    *,
    replays: Link | None = None,
    cost: CostMeasure | None = None,
) -> str:
    """Returns a page with everything that one results folder holds, or two side by side.

    Compares each setting of the second folder with the setting of the first folder that has most
    options in common, on the examples of both.

    `replays` maps examples to files in the page's folder; `cost` is shown first (None:
    `usual_cost`).
    """
    groups = _grouped(found)
    machines = [machine for folder in found for machine in folder.summary["machines"]]
    titles = titles_of(
        (asked_of(s.row["settings"]) for settings in groups.values() for s in settings), machines
    )
    tasks = []
    for group, settings in groups.items():
        rows = [s.row for s in settings]
        parts = [(found[number].summary, [s.row for s in settings if s.folder == number])
                 for number in sorted({s.folder for s in settings}, reverse=True)]  # fmt: skip
        examples = _examples(settings, group.asked, replays or {})
        usual = cost or usual_cost(rows)
        tasks.append({
            "task": " against ".join(dict.fromkeys(titles[asked_of(r["settings"])] for r in rows)),
            "models": list(dict.fromkeys(row["settings"]["model"] for row in rows)),
            "rows": _shown(settings), "examples": examples, "changes": _changes(settings, examples),
            "origin": " Before that: ".join(origin(own, summary) for summary, own in parts),
            "cost": usual.name,
            "advice": {measure.name: advice(rows, measure) if len(found) == 1 else ""
                       for measure in COSTS.values()},
            "tables": "\n\n".join(
                text for summary, own in parts for text in further_tables(own, summary)
            ),
        })  # fmt: skip
    names = [folder.folder.path.resolve().name for folder in found]
    notice = unfinished_notice(row for folder in found for row in folder.summary["rows"])
    content = {
        "folders": names, "notice": notice, "tasks": tasks,
        "costs": {measure.name: measure._asdict() for measure in COSTS.values()},
    }  # fmt: skip
    unfinished = " (unfinished)" if notice else ""
    return fill("report", title=f"{' against '.join(names)}{unfinished}", content=content)


def unfinished_notice(rows: Iterable[Row]) -> str:
    """Says that records are missing; empty if none are."""
    counts = [(row["num_missing"], row["num_records"]) for row in rows]
    missing, present = (sum(column) for column in zip(*counts, strict=True))
    if not missing:
        return ""
    total = missing + present
    return f"Unfinished: {missing} of {total} examples are missing, so every number may change."


def _grouped(folders: Sequence[MeasuredFolder]) -> dict[RowGroup, list[_Setting]]:
    """Groups the settings that the page shows together; with two folders, by shared examples."""
    groups: dict[RowGroup, list[_Setting]] = {}
    for number, folder in enumerate(folders):
        earlier = {group: _examples_of(settings) for group, settings in groups.items()}
        for row, pool in zip(folder.summary["rows"], folder.pools, strict=True):
            setting = _Setting(row, pool, number)
            example_set = asked_of(row["settings"])
            group = RowGroup(row["settings"]["model"] if len(folders) == 1 else "", example_set)
            if number and group not in earlier:
                candidates = [g for g in earlier if g.asked.version == example_set.version]
                identities = _examples_of([setting])
                best = max(candidates, key=lambda g: len(earlier[g] & identities), default=group)
                group = best if earlier.get(best, set()) & identities else group
            groups.setdefault(group, []).append(setting)
    return groups


def _examples_of(settings: Sequence[_Setting]) -> set[tuple[str, str, str]]:
    return {identity(record) for s in settings for record in s.pool.records}


def _shown(settings: Sequence[_Setting]) -> list[dict[str, Any]]:
    """Returns the numbers that the page shows, as a flat dictionary for each setting."""
    rows = [s.row for s in settings]
    has_models = len({(s.folder, s.row["settings"]["model"]) for s in settings}) > len(
        {s.folder for s in settings}
    )
    entries = []
    for setting, name, full in zip(
        settings, names_of(rows), names_of(rows, short=False), strict=True
    ):
        row = setting.row
        model = f"{row['settings']['model']}: " * has_models
        peers = [peer.row for peer in settings if peer.folder == setting.folder]
        entries.append({
            "name": model + name, "full": model + full, "method": method_of(row["settings"]),
            "folder": setting.folder, "seeds": seeds_of(row), "settings": row["settings"],
            **_numbers(row), "commits": commits_of(row, peers) or None,
            "keys": [setting.pool.settings.with_seed(seed).key("") for seed in setting.pool.seeds],
        })  # fmt: skip
    return entries


def _numbers(row: Row) -> dict[str, Any]:
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
        "p50_s": (timing.get("latency_s") or {}).get("p50"),
        "p99_s": (timing.get("latency_s") or {}).get("p99"),
        "tau": (row.get("order") or {}).get("order_correlation"),
        "accepted_length": verified.get("accepted_length"),
        "acceptance_rate": verified.get("acceptance_rate"),
        "errors": row["num_errors"],
        "missing": row["num_missing"],
        "expected": row["num_missing"] + row["num_records"],
        "fronts": [name for name, cost in COSTS.items() if is_on_front(row, cost)],
    }


_PARTS = ("against_reference", "speed", "timing")


def _interval(estimate: Row | None) -> list[float] | None:
    return [estimate["value"], estimate["low"], estimate["high"]] if estimate else None


def _examples(
    settings: Sequence[_Setting], example_set: ExampleSet, replays: Link
) -> list[dict[str, Any]]:
    """Lists every example with each setting's answers; None where an answer is missing."""
    cells: dict[tuple[str, str, str], list[list[dict[str, Any]] | None]] = {}
    for number, (_, pool, _) in enumerate(settings):
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


def _changes(
    settings: Sequence[_Setting], examples: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Compares each setting of the second folder with the most similar setting of the first."""
    first = [number for number, setting in enumerate(settings) if setting.folder == 0]
    changes = []
    for after, setting in enumerate(settings):
        if setting.folder == 0 or not first:
            continue
        options = setting.row["settings"].items()
        before = max(
            first, key=lambda n: len([1 for k, v in options if settings[n].row["settings"][k] == v])
        )
        pairs = [
            (_score(example["cells"][before]), _score(example["cells"][after]))
            for example in examples
        ]
        scored = [(a, b) for a, b in pairs if a is not None and b is not None]
        comparison = difference([a for a, _ in scored], [b for _, b in scored])
        changes.append({
            "before": before, "after": after, "shared": len(scored),
            "difference": _interval(comparison.get("accuracy")),
            "p_value": comparison.get("mcnemar", {}).get("p_value"),
        })  # fmt: skip
    return changes


def _score(answers: Sequence[Mapping[str, Any]] | None) -> float | None:
    scores = [answer["score"] for answer in answers or [] if answer["score"] is not None]
    return mean(scores) if scores else None
