"""The report of a results folder: numbers, a table, pictures and replays, all offline."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.addresses import parse_task
from eval.metrics import Point
from eval.plots import draw_trade_off
from eval.records import Folder, Record, Settings
from eval.replay import replay_page
from eval.summary import Row, summarise
from eval.theory import curve

_HEAD = (
    "sampler",
    "accuracy",
    "against reference",
    "p",
    "tokens/forward",
    "NFE",
    "step speed-up",
    "tokens/s",
    "p50 / p99 s",
    "tau",
    "errors",
)


def write_report(folder: Folder, *, num_replays: int = 2) -> Path:
    """Writes `report.md`, `summary.json`, pictures and replay pages into a results folder.

    Args:
        folder: Its records are read anew.
        num_replays: Examples of each task that get a page.

    Returns:
        The path of `report.md`.

    Raises:
        ValueError: If the folder is damaged or holds no records.
    """
    summary = summarise(folder)
    _write(folder.path / "summary.json", json.dumps(summary, indent=1) + "\n")
    parts = [_opening(summary)]
    for (model, task), rows in _by_task(summary["rows"]).items():
        parts += [f"## {task}\n\nModel `{model}`.", table(rows), _methods(summary, model, task)]
        parts += _pictures(folder, model, task, rows)
    parts += _replays(folder, num_replays)
    report = folder.path / "report.md"
    _write(report, "\n\n".join(part for part in parts if part) + "\n")
    return report


def table(rows: Sequence[Row]) -> str:
    """Returns a Markdown table of settings, the reference first."""
    lines = [_line(_HEAD), _line(["---"] * len(_HEAD))]
    return "\n".join([*lines, *(_line(_cells(row, rows)) for row in rows)])


def _opening(summary: dict[str, Any]) -> str:
    rows = summary["rows"]
    errors = sum(row["num_errors"] for row in rows)
    missing = sum(row["num_missing"] for row in rows)
    total = sum(row["settings"]["num_examples"] for row in rows)
    said = [
        "# Results",
        "Accuracy with its 95 % Wilson interval. Against the reference, the first row of a task: "
        "paired difference with its 95 % bootstrap interval over examples, and the exact McNemar "
        "p-value. Tokens per forward is a ratio of sums; tokens count up to and including the "
        "first EOS. NFE is forwards per example. tau is Kendall's tau-b between position and "
        "step: 1 is left to right. Bold: no other setting is better in accuracy and speed.",
    ]
    if errors:
        said.append(
            f"**{errors} of {total} examples raised an error.** They count as wrong. Most frequent:"
        )
        said.append("\n".join(
            f"- {row['settings']['sampler']}: {count} x `{message}`"
            for row in rows for message, count in row["errors"].items()
        ))  # fmt: skip
    if missing:
        said.append(f"**{missing} of {total} examples are missing.** Start the run again.")
    return "\n\n".join([*said, _settings(rows)])


def _settings(rows: Sequence[Row]) -> str:
    """Lists what all settings share."""
    columns = [name for name in rows[0]["settings"] if name not in ("sampler", "task", "examples")]
    lines = []
    for name in columns:
        values = list(dict.fromkeys(str(row["settings"][name]) for row in rows))
        lines.append(f"- {name}: {', '.join(values)}")
    return "\n".join(lines)


def _by_task(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["num_records"]:
            key = (row["settings"]["model"], row["settings"]["task"])
            found.setdefault(key, []).append(row)
    return found


def _cells(row: Row, rows: Sequence[Row]) -> list[str]:
    accuracy, speed = row["accuracy"], row.get("speed")
    against = row.get("against_reference", {})
    difference, test = against.get("accuracy"), against.get("mcnemar")
    name = f"`{_name(row, rows)}`"
    cells = [
        f"**{name}**" if row["is_on_front"] else name,
        _interval(accuracy, 3) if accuracy else "-",
        _interval(difference, 3, sign="+") if difference else "-",
        f"{test['p_value']:.2g}" if test else "-",
    ]
    if speed is None:
        return [*cells, "-", "-", "-", "-", "-", "-", str(row["num_errors"])]
    timing, tau = row["timing"], row["order"]["order_correlation"]
    latency = timing["latency_s"]
    return [
        *cells,
        _interval(speed["tokens_per_forward"], 2),
        f"{speed['nfe']:.1f}",
        f"{against['step_speedup']:.2f}" if "step_speedup" in against else "1",
        f"{timing['tokens_per_second']:.0f}",
        f"{latency['p50']:.3g} / {latency['p99']:.3g}",
        "-" if tau is None else f"{tau:.2f}",
        str(row["num_errors"]),
    ]


def _name(row: Row, rows: Sequence[Row]) -> str:
    """Names a row by its sampler and by whatever else tells the rows apart."""
    parts = [row["settings"]["sampler"]]
    for field in ("cache", "verifier", "seed", "prompts", "gen_length", "block_length"):
        if len({str(other["settings"][field]) for other in rows}) > 1:
            value = row["settings"][field]
            parts.append(value if field in ("cache", "verifier") else f"{field}={value}")
    return " + ".join(parts)


def _interval(found: Row, digits: int, sign: str = "") -> str:
    value, low, high = (f"{found[name]:{sign}.{digits}f}" for name in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def _line(cells: Sequence[str]) -> str:
    escaped = [cell.replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"


def _methods(summary: dict[str, Any], model: str, task: str) -> str:
    methods = [m for m in summary["methods"] if m["model"] == model and m["task"] == task]
    if not methods:
        return ""
    limits = list(methods[0]["speed_at_accuracy"])
    head = ["method", "settings", f"AUP (best accuracy {methods[0]['best_accuracy']:.3f})"]
    head += [f"tokens/forward at accuracy {limit}" for limit in limits]
    lines = [_line(head), _line(["---"] * len(head))]
    for method in methods:
        reached = [method["speed_at_accuracy"][limit] for limit in limits]
        lines.append(_line([
            method["method"], str(method["num_points"]), f"{method['aup']:.1f}",
            *("-" if speed is None else f"{speed:.2f}" for speed in reached),
        ]))  # fmt: skip
    return "\n".join(lines)


def _pictures(folder: Folder, model: str, task: str, rows: Sequence[Row]) -> list[str]:
    drawn = [row for row in rows if row["accuracy"] is not None and "speed" in row]
    if not drawn:
        return []
    name = _slug(f"{model}-{task}")
    num_examples = drawn[0]["accuracy"]["num_examples"]
    draw_trade_off(
        drawn,
        folder.path / name,
        title=f"{task}, model {model}, n = {num_examples}, 95 % intervals",
        exact=_exact(task),
    )
    return [f"![accuracy against tokens per forward, {task}]({name}.png)"]


def _exact(task: str) -> list[Point]:
    selection = parse_task(task)
    return curve(selection.task, selection.task.examples(num_examples=1)[0])


def _replays(folder: Folder, num_replays: int) -> list[str]:
    by_key = {settings.key(""): settings for settings in folder.settings()}
    examples: dict[tuple[str, str], list[tuple[Settings, Record]]] = {}
    for record in folder.records():
        settings = by_key.get(record["settings"])
        if settings is not None and record["error"] is None and record["trace"] is not None:
            examples.setdefault((settings.task, record["example"]), []).append((settings, record))
    links = []
    count: dict[str, int] = {}
    for (task, example), found in examples.items():
        count[task] = count.get(task, 0) + 1
        if count[task] <= num_replays:
            name = f"replay-{_slug(f'{task}-{example}')}.html"
            _write(folder.path / name, replay_page(found))
            links.append(f"- [{task}, example {example}]({name})")
    return ["## Replays", "\n".join(links)] if links else []


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _write(path: Path, text: str) -> None:
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
