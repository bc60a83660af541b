"""The report of a results folder: numbers, a table, pictures and replays, all offline."""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from dllm_decode.settings.files import digest, write_json, write_text
from eval.grid import markdown_of
from eval.metrics.costs import COSTS, CostMeasure, Row, usual_cost
from eval.metrics.curves import (
    ExampleSet,
    RowGroup,
    asked_of,
    group_of,
    groups_of,
    points_of,
    titles_of,
)
from eval.metrics.metrics import TradeOff
from eval.oracle.exact import curve
from eval.reports.advice import advice
from eval.reports.names import names_of, seeds_of
from eval.reports.page import page_of, unfinished_notice
from eval.reports.plots import draw_trade_off
from eval.reports.replay import replay_page
from eval.reports.summary import MeasuredFolder
from eval.reports.table import (
    accepted_lengths,
    bold,
    commits,
    origin,
    other_scores,
    pass_at,
    pb_scores,
    table,
)
from eval.reports.templates import asset
from eval.runs.names import LISTS, parse_task
from eval.runs.records import Record
from eval.runs.settings import RunSettings

PAGE = "report.html"

# Characters of a file's name before a digest and a suffix; systems take 255 bytes.
_LONGEST = 200

Key = TypeVar("Key")


def write_report(
    found: MeasuredFolder, *, num_replays: int = 30, cost: CostMeasure | None = None
) -> Path:
    """Writes `report.html`, `report.md`, `summary.json`, pictures and replays; returns `report.md`.

    Args:
        found: The folder, as `measured` read it.
        num_replays: Examples of each task that get a replay page, first those on which settings
            disagree.
        cost: Cost by which settings are compared; None is `usual_cost`.
    """
    folder, summary = found.folder, found.summary
    write_json(folder.path / "summary.json", summary)
    notice = unfinished_notice(summary["rows"])
    replays = _replays(found, num_replays, notice)
    groups = groups_of(row for row in summary["rows"] if row["num_records"])
    titles = titles_of((group.asked for group in groups), summary["machines"])
    exact = {example_set: _exact(example_set.task) for example_set in titles}
    pictures = _file_names({group: f"{group.model}\n{titles[group.asked]}" for group in groups})
    page = page_of([found], replays=replays, exact=exact, cost=cost)
    write_text(folder.path / PAGE, page)
    parts = [_opening(summary), pb_scores(summary)]
    for group, rows in groups.items():
        title = titles[group.asked]
        num_examples = rows[0]["settings"]["num_examples"]
        parts.append(f"## {title}\n\nModel `{group.model}`, {num_examples} examples.")
        chosen = cost or usual_cost(rows)
        parts += [notice and f"**{notice}**", advice(rows, chosen), table(rows, chosen)]
        parts += [bold(chosen), origin(rows, summary), commits(rows)]
        parts += [pass_at(rows), other_scores(rows), accepted_lengths(rows)]
        parts.append(_methods(summary, group))
        parts += _pictures(
            rows, folder.path / pictures[group],
            title=f"{title}, model {group.model}", exact=exact[group.asked], cost=chosen,
        )  # fmt: skip
    links = [
        f"- [{titles[example_set]}, example {example}]({name})"
        for (example_set, example), name in replays.items()
    ]
    parts += ["## Replays", "\n".join(links)] if links else []
    report = folder.path / "report.md"
    write_text(report, "\n\n".join(part for part in parts if part) + "\n")
    return report


def _opening(summary: dict[str, Any]) -> str:
    rows = summary["rows"]
    errors = sum(row["num_errors"] for row in rows)
    missing = sum(row["num_missing"] for row in rows)
    total = sum(row["settings"]["num_examples"] * len(row["seeds"]) for row in rows)
    paragraphs = [asset("opening.md").rstrip()]
    if any("verified" in row for row in rows):
        paragraphs.append(asset("verified.md").rstrip())
    if errors:
        paragraphs.append(
            f"**{errors} of {total} examples raised an error.** They count as wrong. Most frequent:"
        )
        groups = groups_of(rows)
        titles = titles_of((group.asked for group in groups), summary["machines"])
        paragraphs.append("\n".join(
            f"- {f'{titles[group.asked]}: ' if len(groups) > 1 else ''}{name}: "
            f"{count} x `{message}`"
            for group, group_rows in groups.items()
            for name, row in zip(names_of(group_rows), group_rows, strict=True)
            for message, count in row["errors"].items()
        ))  # fmt: skip
    if any(row["accuracy"] is None and "speed" in row for row in rows):
        paragraphs.append(
            "Accuracy is - where the task's first score is undefined, such as for lack of an "
            "optional package. Scores that are defined are in `summary.json`."
        )
    if missing:
        paragraphs.append(
            f"**Unfinished: {missing} of {total} examples are missing.** Start the run again."
        )
    return "\n\n".join([*paragraphs, _settings(rows)])


def _settings(rows: Sequence[Row]) -> str:
    """Lists the values of each option of all settings."""
    hidden = ("sampler", "task", "examples", "seed")
    lines = []
    for name in (name for name in rows[0]["settings"] if name not in hidden):
        values = dict.fromkeys(str(row["settings"][name]) or "none" for row in rows)
        lines.append(f"- {name}: {', '.join(values)}")
    return "\n".join([*lines, f"- seeds: {'; '.join(dict.fromkeys(map(seeds_of, rows)))}"])


def _methods(summary: dict[str, Any], group: RowGroup) -> str:
    methods = [method for method in summary["methods"] if group_of(method) == group]
    if not methods:
        return ""
    limits = list(methods[0]["speed_at_accuracy"])
    head = ["method", "settings", f"AUP (best accuracy {methods[0]['best_accuracy']:.3f})"]
    grid = [head + [f"tokens/forward at accuracy {limit}" for limit in limits]]
    for method in methods:
        reached = [method["speed_at_accuracy"][limit] for limit in limits]
        speeds = ["-" if speed is None else f"{speed:.2f}" for speed in reached]
        grid.append([method["method"], str(method["num_points"]), f"{method['aup']:.1f}", *speeds])
    return markdown_of(grid)


def _pictures(
    rows: Sequence[Row], path: Path, *, title: str, exact: Sequence[TradeOff], cost: CostMeasure
) -> list[str]:
    drawn = [rows[number] for number in points_of(rows, cost)]
    if not drawn:
        return []
    count = f"n = {drawn[0]['accuracy']['num_examples']}"
    if len(drawn[0]["seeds"]) > 1:
        count += f", mean of {len(drawn[0]['seeds'])} seeds"
    if any(row["num_missing"] for row in drawn):
        count += ", UNFINISHED"
    exact = exact if cost == COSTS["forwards"] else ()
    draw_trade_off(rows, path, title=f"{title}, {count}, 95 % intervals", cost=cost, exact=exact)
    return [f"![accuracy against {cost.axis}, {title}]({path.name}.png)"]


def _exact(task: str) -> list[TradeOff]:
    # Other tasks have no curve, and a report must not need their modules and files.
    exact = parse_task(task).task if task.startswith(LISTS) else None
    return curve(exact, exact.examples(num_examples=1)[0]) if exact else []


def _replays(
    contents: MeasuredFolder, num_replays: int, notice: str
) -> dict[tuple[ExampleSet, str], str]:
    """Writes replay pages and returns their file names by set of examples and example id."""
    example_sets = {settings: asked_of(settings.written()) for settings in contents.results}
    titles = titles_of(example_sets.values(), contents.summary["machines"])
    examples = defaultdict(list)
    for settings, records in contents.results.items():
        for record in records:
            if record["error"] is None and record["trace"] is not None:
                examples[example_sets[settings], record["example"]].append((settings, record))
    # Disagreements come first. The sort is stable, so it keeps the order of decoding otherwise.
    ordered = sorted(examples.items(), key=lambda item: not _disagree(item[1]))
    names = _file_names({(example_set, example): f"{titles[example_set]}\n{example}"
                         for example_set, example in examples})  # fmt: skip
    written: dict[tuple[ExampleSet, str], str] = {}
    count: Counter[ExampleSet] = Counter()
    for (example_set, example), runs in ordered:
        count[example_set] += 1
        if count[example_set] <= num_replays:
            name = f"replay-{names[example_set, example]}.html"
            write_text(contents.folder.path / name, replay_page(runs, report=PAGE, notice=notice))
            written[example_set, example] = name
    return written


def _disagree(runs: Sequence[tuple[RunSettings, Record]]) -> bool:
    return len({record["scores"][record["primary"]] for _, record in runs}) > 1


def _file_names(texts: Mapping[Key, str]) -> dict[Key, str]:
    """Returns file names, made of the texts' letters and digits.

    Long names, and names that several texts would share, end with a digest.
    """
    slugs = {
        key: re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") for key, text in texts.items()
    }
    count = Counter(slugs.values())
    return {
        key: slug if count[slug] == 1 and len(slug) <= _LONGEST
        else f"{slug[:_LONGEST]}-{digest(texts[key])[:8]}"
        for key, slug in slugs.items()
    }  # fmt: skip
