"""Methods on the plane of speed and accuracy: fronts, and scores of curves."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from eval.metrics.costs import COSTS, CostMeasure, Row, speed_of
from eval.metrics.metrics import TradeOff, aup, pareto_front, pb_score, speed_at_accuracy
from eval.metrics.statistics import mean
from eval.tasks.parallelbench import PARALLEL_BENCH

ACCURACIES = (0.8, 0.75, 0.7)
PB_ACCURACIES = (0.9, 0.8, 0.7, 0.6)
_OF_TASK = (
    "task", "task_version", "examples", "num_examples", "gen_length", "block_length", "seed"
)  # fmt: skip


class ExampleSet(NamedTuple):
    """Address and version of a task, and the digest of its examples: answers to it are compared."""

    task: str
    version: int
    examples: str


class RowGroup(NamedTuple):
    """The facts that rows share if they are compared with each other."""

    model: str
    asked: ExampleSet


def asked_of(settings: Mapping[str, Any]) -> ExampleSet:
    """Returns the examples of some settings, as `Settings.written` gives them."""
    return ExampleSet(settings["task"], settings["task_version"], settings["examples"])


def group_of(settings: Mapping[str, Any]) -> RowGroup:
    """Returns the group of settings with which some settings are compared."""
    return RowGroup(settings["model"], asked_of(settings))


def groups_of(rows: Iterable[Row]) -> dict[RowGroup, list[Row]]:
    """Returns the rows that are compared with each other, in the order of the rows."""
    found: dict[RowGroup, list[Row]] = {}
    for row in rows:
        found.setdefault(group_of(row["settings"]), []).append(row)
    return found


def titles_of(
    asked: Iterable[ExampleSet], machines: Iterable[Mapping[str, Any]] = ()
) -> dict[ExampleSet, str]:
    """Names tasks by their address; also by version or examples if several have one address.

    The address is as the user wrote it on the command line of one of the machines.
    """
    words = [word for one in machines for word in str(one.get("command", "")).split()]
    typed = {_parts_of(word): word for word in words}
    known = dict.fromkeys(asked)
    titles = {}
    for one in known:
        versions = {other.version for other in known if other.task == one.task}
        alike = [other for other in known if other[:2] == one[:2]]
        titles[one] = typed.get(_parts_of(one.task), one.task)
        titles[one] += f", version {one.version}" if len(versions) > 1 else ""
        titles[one] += f", examples {one.examples[:6]}" if len(alike) > 1 else ""
    return titles


def _parts_of(address: str) -> tuple[str, frozenset[str]]:
    name, _, options = address.partition("?")
    return name, frozenset(options.split("&"))


def points_of(rows: Sequence[Row], cost: CostMeasure) -> dict[int, TradeOff]:
    """Returns by the number of a row its place on the plane, if accuracy and cost are known."""
    return {
        number: TradeOff(speed["value"], row["accuracy"]["value"])
        for number, row in enumerate(rows)
        if (speed := speed_of(row, cost)) and row["accuracy"]
    }


def method_of(settings: Mapping[str, Any]) -> str:
    """Returns the name of a method: the sampler without its numbers, and what goes with it."""
    names = ("sampler", "cache", "verifier", "blocks")
    parts = [settings[name].partition("(")[0] for name in names]
    usual = ("", "NoCache", "NoVerifier", "Sequential")
    return " + ".join(part for part in parts if part not in usual)


def mark_fronts(rows: Sequence[Row]) -> None:
    """Adds to `fronts` of a row each cost by which no other row of its group beats it."""
    for group in groups_of(rows).values():
        for cost in COSTS.values():
            points = points_of(group, cost)
            numbers = list(points)
            for index in pareto_front(list(points.values())):
                row = group[numbers[index]]
                own = row["timing"] if cost.name == "seconds" else row
                own["fronts"].append(cost.name)


def methods(rows: Sequence[Row]) -> list[Row]:
    """Scores each method's curve. AUP depends on who else is in the folder: see `best_accuracy`."""
    found = []
    for (model, asked), group in groups_of(rows).items():
        placed = points_of(group, COSTS["forwards"])
        best = max((point.accuracy for point in placed.values()), default=0.0)
        curves: dict[str, list[TradeOff]] = defaultdict(list)
        for number, point in placed.items():
            curves[method_of(group[number]["settings"])].append(point)
        for method, points in curves.items():
            reached = {str(y): speed_at_accuracy(points, y) for y in ACCURACIES}
            found.append({
                "model": model, "task": asked.task, "task_version": asked.version,
                "examples": asked.examples, "method": method, "num_points": len(points),
                "best_accuracy": best, "aup": aup(points, best) if best else 0.0,
                "speed_at_accuracy": reached,
            })  # fmt: skip
    return found


def parallel_bench(rows: Sequence[Row]) -> list[Row]:
    """Scores the settings of each model over all tasks of ParallelBench that it was asked.

    The speed of a setting is the mean over the tasks of `gen_length` over forwards, those of a
    target included; its accuracy is the mean of the tasks' means. A setting that lacks a task does
    not count. Rows of one task that differ in their lengths only count as their mean, as upstream.
    """
    found = []
    asked = [row for row in rows if row["settings"]["task"].startswith(PARALLEL_BENCH)]
    for model in dict.fromkeys(row["settings"]["model"] for row in asked):
        settings: dict[str, dict[str, list[TradeOff]]] = defaultdict(lambda: defaultdict(list))
        for row in asked:
            own = row["settings"]
            if own["model"] == model and row["accuracy"] and "speed" in row:
                name = str({key: value for key, value in own.items() if key not in _OF_TASK})
                speed = own["gen_length"] / (row["speed"]["nfe"] + row["speed"]["target_nfe"])
                point = TradeOff(speed, row["accuracy"]["value"])
                settings[name][own["task"]].append(point)
        tasks = {task for own in settings.values() for task in own}
        points = [_mean([_mean(own) for own in by_task.values()])
                  for by_task in settings.values() if by_task.keys() == tasks]  # fmt: skip
        scores = {f"PB{100 * y:.0f}": pb_score(points, y) for y in PB_ACCURACIES}
        found.append({"model": model, "num_tasks": len(tasks), "num_settings": len(points),
                      "scores": scores})  # fmt: skip
    return found


def _mean(points: Sequence[TradeOff]) -> TradeOff:
    return TradeOff(*(mean(values) for values in zip(*points, strict=True)))
