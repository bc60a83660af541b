"""Methods on the plane of speed and accuracy: fronts, curves and what they are worth."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from eval.metrics.metrics import Point, aup, pareto_front, speed_at_accuracy

Row: TypeAlias = dict[str, Any]
"""Numbers of one setting, ready for JSON; see `eval.reports.summary`."""

ACCURACIES = (0.8, 0.75, 0.7)


def point_of(row: Row) -> Point:
    """Returns a row's place on the plane; a verifier's target does not forward for free."""
    return Point(row["speed"]["tokens_per_any_forward"]["value"], row["accuracy"]["value"])


def method_of(settings: Mapping[str, Any]) -> str:
    """Returns the name of a method: the sampler without its numbers, and what goes with it."""
    names = ("sampler", "cache", "verifier", "blocks")
    parts = [settings[name].partition("(")[0] for name in names]
    usual = ("", "NoCache", "NoVerifier", "Sequential")
    return " + ".join(part for part in parts if part not in usual)


def mark_fronts(rows: Sequence[Row]) -> None:
    """Marks, of each model and task, the rows that no other beats in speed and accuracy."""
    for group in _groups(rows).values():
        for index in pareto_front([point_of(row) for row in group]):
            group[index]["is_on_front"] = True


def methods(rows: Sequence[Row]) -> list[Row]:
    """Scores each method's curve. AUP depends on who else is in the folder: see `best_accuracy`."""
    found = []
    for (model, task), group in _groups(rows).items():
        best = max(point_of(row).accuracy for row in group)
        curves: dict[str, list[Point]] = defaultdict(list)
        for row in group:
            curves[method_of(row["settings"])].append(point_of(row))
        for method, points in curves.items():
            reached = {str(y): speed_at_accuracy(points, y) for y in ACCURACIES}
            found.append({
                "model": model, "task": task, "method": method, "num_points": len(points),
                "best_accuracy": best, "aup": aup(points, best) if best else 0.0,
                "speed_at_accuracy": reached,
            })  # fmt: skip
    return found


def _groups(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    grouped: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["accuracy"] is not None and "speed" in row:
            grouped[row["settings"]["model"], row["settings"]["task"]].append(row)
    return grouped
