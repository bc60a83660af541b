"""Methods on the plane of speed and accuracy: fronts, and scores of curves."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from eval.metrics.costs import COSTS, CostMeasure, SummaryRow, speed_of
from eval.metrics.metrics import TradeOff, aup, pareto_front, pb_score, speed_at_accuracy
from eval.metrics.statistics import mean
from eval.tasks.parallelbench import PARALLEL_BENCH

ACCURACIES = (0.8, 0.75, 0.7)
PB_ACCURACIES = (0.9, 0.8, 0.7, 0.6)
_OF_TASK = (
    "task", "task_version", "examples", "num_examples", "gen_length", "block_length", "seed"
)  # fmt: skip


class ExampleSet(NamedTuple):
    """Address and version of a task and the digest of its examples, on which rows are compared."""

    task: str
    version: int
    examples: str


class RowGroup(NamedTuple):
    """The facts that rows share if they are compared with each other."""

    model: str
    example_set: ExampleSet


def example_set_of(settings: Mapping[str, Any]) -> ExampleSet:
    """Returns the set of examples of settings, given as `RunSettings.written` returns them."""
    return ExampleSet(settings["task"], settings["task_version"], settings["examples"])


def group_of(settings: Mapping[str, Any]) -> RowGroup:
    """Returns the group of rows with which a row that has these settings is compared."""
    return RowGroup(settings["model"], example_set_of(settings))


def groups_of(rows: Iterable[SummaryRow]) -> dict[RowGroup, list[SummaryRow]]:
    """Returns the rows that are compared with each other, in the order of the rows."""
    groups: dict[RowGroup, list[SummaryRow]] = {}
    for row in rows:
        groups.setdefault(group_of(row["settings"]), []).append(row)
    return groups


def titles_of(example_sets: Iterable[ExampleSet]) -> dict[ExampleSet, str]:
    """Names tasks by their address; also by version or examples if several share an address."""
    distinct = dict.fromkeys(example_sets)
    titles = {}
    for example_set in distinct:
        versions = {other.version for other in distinct if other.task == example_set.task}
        alike = [other for other in distinct if other[:2] == example_set[:2]]
        titles[example_set] = example_set.task
        titles[example_set] += f", version {example_set.version}" if len(versions) > 1 else ""
        titles[example_set] += f", examples {example_set.examples[:6]}" if len(alike) > 1 else ""
    return titles


def points_of(rows: Sequence[SummaryRow], cost: CostMeasure) -> dict[int, TradeOff]:
    """Returns the points of rows whose accuracy and cost are known, by the number of the row."""
    return {
        number: TradeOff(speed["value"], row["accuracy"]["value"])
        for number, row in enumerate(rows)
        if (speed := speed_of(row, cost)) and row["accuracy"]
    }


def method_of(settings: Mapping[str, Any]) -> str:
    """Returns the name of a method: its plug-ins, without arguments and without defaults."""
    names = ("sampler", "cache", "verifier", "blocks")
    parts = [settings[name].partition("(")[0] for name in names]
    usual = ("", "NoCache", "NoVerifier", "Sequential")
    return " + ".join(part for part in parts if part not in usual)


def mark_fronts(rows: Sequence[SummaryRow]) -> None:
    """Adds to `fronts` of each row the costs for which it is on the Pareto front of its group."""
    for group in groups_of(rows).values():
        for cost in COSTS.values():
            points = points_of(group, cost)
            numbers = list(points)
            for index in pareto_front(list(points.values())):
                group[numbers[index]]["fronts"].append(cost.name)


def methods(rows: Sequence[SummaryRow]) -> list[dict[str, Any]]:
    """Scores each method's curve. AUP depends on the `best_accuracy` of all methods of a group."""
    method_rows = []
    for (model, example_set), group in groups_of(rows).items():
        placed = points_of(group, COSTS["forwards"])
        best = max((point.accuracy for point in placed.values()), default=0.0)
        curves: dict[str, list[TradeOff]] = defaultdict(list)
        for number, point in placed.items():
            curves[method_of(group[number]["settings"])].append(point)
        for method, points in curves.items():
            reached = {str(y): speed_at_accuracy(points, y) for y in ACCURACIES}
            method_rows.append({
                "model": model, "task": example_set.task, "task_version": example_set.version,
                "examples": example_set.examples, "method": method, "num_points": len(points),
                "best_accuracy": best, "aup": aup(points, best) if best else 0.0,
                "speed_at_accuracy": reached,
            })  # fmt: skip
    return method_rows


def parallel_bench(rows: Sequence[SummaryRow]) -> list[dict[str, Any]]:
    """Scores the settings of each model over all tasks of ParallelBench that it was asked.

    The speed of a setting is `gen_length` divided by forwards (with those of a target), averaged
    over the tasks; its accuracy is the mean of the tasks' means. A setting that lacks a task does
    not count. Rows of a task that differ only in lengths count as their mean, as upstream.
    """
    model_rows = []
    bench_rows = [row for row in rows if row["settings"]["task"].startswith(PARALLEL_BENCH)]
    for model in dict.fromkeys(row["settings"]["model"] for row in bench_rows):
        settings: dict[str, dict[str, list[TradeOff]]] = defaultdict(lambda: defaultdict(list))
        for row in bench_rows:
            options = row["settings"]
            if options["model"] == model and row["accuracy"] and "speed" in row:
                name = str({key: value for key, value in options.items() if key not in _OF_TASK})
                speed = options["gen_length"] / (row["speed"]["nfe"] + row["speed"]["target_nfe"])
                point = TradeOff(speed, row["accuracy"]["value"])
                settings[name][options["task"]].append(point)
        tasks = {task for by_task in settings.values() for task in by_task}
        points = [_mean([_mean(task_points) for task_points in by_task.values()])
                  for by_task in settings.values() if by_task.keys() == tasks]  # fmt: skip
        scores = {f"PB{100 * y:.0f}": pb_score(points, y) for y in PB_ACCURACIES}
        model_rows.append({"model": model, "num_tasks": len(tasks), "num_settings": len(points),
                      "scores": scores})  # fmt: skip
    return model_rows


def _mean(points: Sequence[TradeOff]) -> TradeOff:
    return TradeOff(*(mean(values) for values in zip(*points, strict=True)))
