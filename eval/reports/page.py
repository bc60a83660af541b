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
from eval.reports.table import commits_of, origin, pb_scores
from eval.reports.templates import fill
from eval.runs.folder import Folder
from eval.runs.records import Record, proposals_of
from eval.studies.reliability import reliability_of_proposals

Link = Mapping[tuple[ExampleSet, str], str]
"""The file that replays an example, by set of examples and id."""


class _Setting(NamedTuple):
    """A setting of the page: its numbers, its records and its folder, 0 or 1."""

    row: Row
    pool: Pool
    folder: int


def report_page(folders: Sequence[Folder]) -> str:
    """Returns a page with everything that one results folder holds, or two side by side.

    Each setting of the second folder is compared with the setting of the first that it shares most
    options with, on the examples that both have. Raises ValueError if a folder is damaged or holds
    no records.
    """
    return page_of([measured(folder) for folder in folders])


def page_of(
    found: Sequence[MeasuredFolder],
    *,
    replays: Link | None = None,
    exact: Mapping[ExampleSet, Any] | None = None,
    cost: CostMeasure | None = None,
) -> str:
    """Returns a page with everything that one results folder holds, or two side by side.

    Each setting of the second folder is compared with the setting of the first that it shares most
    options with, on the examples that both have.

    `replays` are files in the folder of the page; `exact` has, by set of examples, the curve of an
    exact model, drawn dotted; `cost` is shown first, `usual_cost` if it is None.
    """
    groups = _grouped(found)
    machines = [machine for one in found for machine in one.summary["machines"]]
    titles = titles_of(
        (asked_of(one.row["settings"]) for own in groups.values() for one in own), machines
    )
    tasks = []
    for (_, asked), own in groups.items():
        rows = [one.row for one in own]
        examples = _examples(own, asked, replays or {})
        usual = cost or usual_cost(rows)
        tasks.append({
            "task": " against ".join(dict.fromkeys(titles[asked_of(r["settings"])] for r in rows)),
            "models": list(dict.fromkeys(row["settings"]["model"] for row in rows)),
            "rows": _shown(own), "examples": examples, "changes": _changes(own, examples),
            "origin": " Before that: ".join(
                origin([one.row for one in own if one.folder == number], folder.summary)
                for number, folder in reversed(list(enumerate(found)))
                if any(one.folder == number for one in own)
            ),
            "exact": (exact or {}).get(asked, []), "cost": usual.name,
            "advice": {one.name: advice(rows, one) if len(found) == 1 else ""
                       for one in COSTS.values()},
        })  # fmt: skip
    names = [one.folder.path.resolve().name for one in found]
    notice = unfinished_notice(row for one in found for row in one.summary["rows"])
    content = {
        "folders": names, "notice": notice, "tasks": tasks,
        "parallel_bench": "\n\n".join(filter(None, (pb_scores(one.summary) for one in found))),
        "costs": {one.name: one._asdict() for one in COSTS.values()},
    }  # fmt: skip
    unfinished = " (unfinished)" if notice else ""
    return fill("report", title=f"{' against '.join(names)}{unfinished}", content=content)


def unfinished_notice(rows: Iterable[Row]) -> str:
    """Says that records are missing; empty if none are."""
    counts = [(row["num_missing"], row["num_records"]) for row in rows]
    missing, there = (sum(one) for one in zip(*counts, strict=True))
    if not missing:
        return ""
    total = missing + there
    return f"Unfinished: {missing} of {total} examples are missing, so every number may change."


def _grouped(found: Sequence[MeasuredFolder]) -> dict[RowGroup, list[_Setting]]:
    """Returns the settings that are shown together; of two folders those that share examples."""
    groups: dict[RowGroup, list[_Setting]] = {}
    for number, one in enumerate(found):
        earlier = {group: _examples_of(own) for group, own in groups.items()}
        for row, pool in zip(one.summary["rows"], one.pools, strict=True):
            own = _Setting(row, pool, number)
            asked = asked_of(row["settings"])
            group = RowGroup(row["settings"]["model"] if len(found) == 1 else "", asked)
            if number and group not in earlier:
                alike = [g for g in earlier if g.asked.version == asked.version]
                mine = _examples_of([own])
                best = max(alike, key=lambda g: len(earlier[g] & mine), default=group)
                group = best if earlier.get(best, set()) & mine else group
            groups.setdefault(group, []).append(own)
    return groups


def _examples_of(settings: Sequence[_Setting]) -> set[tuple[str, str, str]]:
    return {identity(record) for one in settings for record in one.pool.records}


def _shown(settings: Sequence[_Setting]) -> list[dict[str, Any]]:
    """Returns the numbers of each setting that the page shows, flat."""
    rows = [one.row for one in settings]
    has_models = len({(one.folder, one.row["settings"]["model"]) for one in settings}) > len(
        {one.folder for one in settings}
    )
    found = []
    for one, name, full in zip(settings, names_of(rows), names_of(rows, short=False), strict=True):
        row = one.row
        model = f"{row['settings']['model']}: " * has_models
        alike = [other.row for other in settings if other.folder == one.folder]
        found.append({
            "name": model + name, "full": model + full, "method": method_of(row["settings"]),
            "folder": one.folder, "seeds": seeds_of(row), "settings": row["settings"],
            **_numbers(row), "commits": commits_of(row, alike) or None,
            "keys": [one.pool.settings.with_seed(seed).key("") for seed in one.pool.seeds],
            "reliability": _reliability(one.pool),
        })  # fmt: skip
    return found


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


def _reliability(pool: Pool) -> dict[str, Any] | None:
    """Returns the reliability diagram of a setting's proposals; None without traces of them."""
    told = [one for one in pool.finished if proposals_of(one)]
    if not any(count for one in told for count, *_ in proposals_of(one) or ()):
        return None
    found = reliability_of_proposals(told)
    return {
        "error": found.calibration_error,
        "num_proposals": found.num_commits,
        "bins": found.bins,
    }


_PARTS = ("against_reference", "speed", "timing")


def _interval(found: Row | None) -> list[float] | None:
    return [found["value"], found["low"], found["high"]] if found else None


def _examples(
    settings: Sequence[_Setting], asked: ExampleSet, replays: Link
) -> list[dict[str, Any]]:
    """Lists every example with the answers of each setting; None where it is missing."""
    cells: dict[tuple[str, str, str], list[list[dict[str, Any]] | None]] = {}
    for number, (_, pool, _) in enumerate(settings):
        seeds = {pool.settings.with_seed(seed).key(""): seed for seed in pool.seeds}
        for record in pool.records:
            row = cells.setdefault(identity(record), [None] * len(settings))
            row[number] = [*(row[number] or []), _answer(record, seeds)]
    return [
        {"id": example, "prompt": prompt, "target": target,
         "replay": replays.get((asked, example)), "cells": cells[example, prompt, target]}
        for example, prompt, target in sorted(cells, key=lambda one: _natural(one[0]))
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
    """Sorts numbers by their value."""
    return (0, int(text), text) if text.isdecimal() else (1, 0, text)


def _changes(
    settings: Sequence[_Setting], examples: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Compares each setting of the second folder with the most similar one of the first."""
    first = [number for number, one in enumerate(settings) if one.folder == 0]
    changes = []
    for after, one in enumerate(settings):
        if one.folder == 0 or not first:
            continue
        own = one.row["settings"].items()
        before = max(
            first, key=lambda n: len([1 for k, v in own if settings[n].row["settings"][k] == v])
        )
        pairs = [
            (_score(example["cells"][before]), _score(example["cells"][after]))
            for example in examples
        ]
        scored = [(a, b) for a, b in pairs if a is not None and b is not None]
        found = difference([a for a, _ in scored], [b for _, b in scored])
        changes.append({
            "before": before, "after": after, "shared": len(scored),
            "difference": _interval(found.get("accuracy")),
            "p_value": found.get("mcnemar", {}).get("p_value"),
        })  # fmt: skip
    return changes


def _score(answers: Sequence[Mapping[str, Any]] | None) -> float | None:
    scores = [one["score"] for one in answers or [] if one["score"] is not None]
    return mean(scores) if scores else None
