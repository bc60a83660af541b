"""The report as a page: settings, picture and every example of one or two results folders."""

from collections.abc import Mapping, Sequence
from typing import Any

from eval.calibrate.reliability import reliability_of_proposals, what_if_proposed
from eval.metrics.curves import ExampleSet, Row, RowGroup, asked_of, method_of, titles_of
from eval.metrics.statistics import mcnemar, mean, paired_bootstrap
from eval.reports.pooling import Pool, pools
from eval.reports.summary import summarise
from eval.reports.table import commits_of, name_of, seeds_of
from eval.reports.templates import fill
from eval.runs.lines import Record, proposals_of
from eval.runs.records import Folder

Link = Mapping[tuple[ExampleSet, str], str]
"""From what was asked, and the example, to the file of its replay."""


def report_page(
    folders: Sequence[Folder],
    *,
    replays: Link | None = None,
    exact: Mapping[ExampleSet, Any] | None = None,
) -> str:
    """Returns a page with everything that one results folder holds, or two side by side.

    Of two folders, settings of the same name are compared on the examples that both have.

    Args:
        folders: One, or two to compare.
        replays: Files beside the page that replay an example.
        exact: By what was asked the curve of an exact model, drawn dotted.

    Raises:
        ValueError: If there are not one or two folders, or one is damaged or holds no records.
    """
    if len(folders) not in (1, 2):
        raise ValueError(f"A page must show one folder or two, got {len(folders)}.")
    tasks: dict[RowGroup, dict[str, Any]] = {}
    for number, folder in enumerate(folders):
        _add_folder(tasks, folder, number, is_alone=len(folders) == 1)
    titles = titles_of(group.asked for group in tasks)
    for (_, asked), task in tasks.items():
        task["task"] = titles[asked]
        task["exact"] = (exact or {}).get(asked, [])
        task["examples"] = _examples(task, asked, replays or {})
        task["changes"] = _changes(task)
        del task["pools"]
    names = [folder.path.resolve().name for folder in folders]
    content = {"folders": names, "notice": _notice(tasks.values()), "tasks": list(tasks.values())}
    unfinished = " (unfinished)" if content["notice"] else ""
    return fill("report", title=f"{' against '.join(names)}{unfinished}", content=content)


def unfinished_notice(missing: int, total: int) -> str:
    """Says that records are missing; empty if none are."""
    if not missing:
        return ""
    return f"Unfinished: {missing} of {total} examples are missing, so every number may change."


def _notice(tasks: Any) -> str:
    rows = [row for task in tasks for row in task["rows"]]
    return unfinished_notice(
        sum(row["missing"] for row in rows), sum(row["expected"] for row in rows)
    )


def _add_folder(
    tasks: dict[RowGroup, dict[str, Any]], folder: Folder, number: int, *, is_alone: bool
) -> None:
    rows = summarise(folder)["rows"]
    found = pools(folder.results())
    for row, pool in zip(rows, found, strict=True):
        own = row["settings"]
        group = _group(row, is_alone=is_alone)
        task = tasks.setdefault(group, {"models": [], "rows": [], "pools": [], "primary": ""})
        task["models"] = list(dict.fromkeys([*task["models"], own["model"]]))
        alike = [other for other in rows if _group(other, is_alone=is_alone) == group]
        keys = [pool.settings.with_seed(seed).key("") for seed in pool.seeds]
        task["rows"].append(
            _shown(row, alike, number) | {"keys": keys, "reliability": _reliability(pool)}
        )
        task["pools"].append(pool)
        for record in pool.records[:1]:
            task["primary"] = record["primary"]


def _group(row: Row, *, is_alone: bool) -> RowGroup:
    """Returns what a row is shown with; models of two folders stand side by side."""
    return RowGroup(row["settings"]["model"] if is_alone else "", asked_of(row["settings"]))


def _shown(row: Row, alike: Sequence[Row], folder: int) -> dict[str, Any]:
    """Returns the numbers of a setting that the page shows, flat."""
    against, speed, timing = (row.get(name) or {} for name in _PARTS)
    verified = row.get("verified") or {}
    name = name_of(row, alike)
    if len({other["settings"]["model"] for other in alike}) > 1:
        name = f"{row['settings']['model']}: {name}"
    return {
        "name": name,
        "method": method_of(row["settings"]),
        "folder": folder,
        "seeds": seeds_of(row),
        "settings": row["settings"],
        "accuracy": _interval(row["accuracy"]),
        "difference": _interval(against.get("accuracy")),
        "p_value": (against.get("mcnemar") or {}).get("p_value"),
        "tokens_per_forward": _interval(speed.get("tokens_per_forward")),
        "tokens_per_any_forward": _interval(speed.get("tokens_per_any_forward")),
        "nfe": speed.get("nfe"),
        "target_nfe": speed.get("target_nfe"),
        "step_speedup": against.get("step_speedup", 1.0) if speed else None,
        "tokens_per_second": timing.get("tokens_per_second"),
        "p50_s": (timing.get("latency_s") or {}).get("p50"),
        "p99_s": (timing.get("latency_s") or {}).get("p99"),
        "tau": (row.get("order") or {}).get("order_correlation"),
        "accepted_length": verified.get("accepted_length"),
        "acceptance_rate": verified.get("acceptance_rate"),
        "errors": row["num_errors"],
        "commits": commits_of(row, alike) or None,
        "missing": row["num_missing"],
        "expected": row["num_missing"] + row["num_records"],
        "is_on_front": row["is_on_front"],
    }


def _reliability(pool: Pool) -> dict[str, Any] | None:
    """Returns the reliability diagram of a setting's proposals; None without traces of them."""
    told = [one for one in pool.finished if proposals_of(one)]
    if not any(count for one in told for count, *_ in proposals_of(one) or ()):
        return None
    found = reliability_of_proposals(told)
    by_threshold = {one.threshold: one for one in what_if_proposed(told)}
    return {
        "error": found.calibration_error,
        "num_proposals": found.num_commits,
        "bins": [[*one, by_threshold[one.low].share, by_threshold[one.low].agreement]
                 for one in found.bins],
    }  # fmt: skip


_PARTS = ("against_reference", "speed", "timing")


def _interval(found: Row | None) -> list[float] | None:
    return [found["value"], found["low"], found["high"]] if found else None


def _examples(task: Mapping[str, Any], asked: ExampleSet, replays: Link) -> list[dict[str, Any]]:
    """Lists every example with what each setting made of it; None where it is missing."""
    cells: dict[str, list[list[dict[str, Any]] | None]] = {}
    heads: dict[str, dict[str, Any]] = {}
    for number, pool in enumerate(task["pools"]):
        seeds = {pool.settings.with_seed(seed).key(""): seed for seed in pool.seeds}
        for record in pool.records:
            example = str(record["example"])
            row = cells.setdefault(example, [None] * len(task["pools"]))
            row[number] = [*(row[number] or []), _answer(record, seeds)]
            heads.setdefault(example, {
                "id": example, "prompt": record.get("prompt", ""),
                "target": record.get("target", ""), "replay": replays.get((asked, example)),
            })  # fmt: skip
    return [{**heads[example], "cells": cells[example]} for example in sorted(cells, key=_natural)]


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


def _changes(task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Compares settings of one name in the two folders on the examples that both have."""
    rows = task["rows"]
    second = {row["name"]: i for i, row in enumerate(rows) if row["folder"] == 1}
    changes = []
    for before, row in enumerate(rows):
        if row["folder"] == 0 and row["name"] in second:
            after = second[row["name"]]
            pairs = [
                (_score(example["cells"][before]), _score(example["cells"][after]))
                for example in task["examples"]
            ]
            scored = [(a, b) for a, b in pairs if a is not None and b is not None]
            changes.append(_change(row["name"], before, after, scored))
    return changes


def _score(answers: Sequence[Mapping[str, Any]] | None) -> float | None:
    scores = [one["score"] for one in answers or [] if one["score"] is not None]
    return mean(scores) if scores else None


def _change(
    name: str, before: int, after: int, scored: Sequence[tuple[float, float]]
) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "before": before, "after": after, "shared": len(scored),
                             "difference": None, "p_value": None}  # fmt: skip
    if scored:
        first, second = ([pair[side] for pair in scored] for side in (0, 1))
        found["difference"] = _interval(paired_bootstrap(first, second)._asdict())
        if all(score in (0, 1) for pair in scored for score in pair):
            found["p_value"] = mcnemar(first, second).p_value
    return found
