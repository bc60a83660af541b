"""The advice of a report: the cheapest setting that is shown to be as good as the reference."""

from collections.abc import Mapping, Sequence
from typing import Any

from eval.metrics.costs import CostMeasure, SummaryRow, speedup_of
from eval.reports.setting_names import names_of

TOLERANCE = 0.02
"""Loss of accuracy, in [0, 1], that the advice accepts."""


def advice(rows: Sequence[SummaryRow], cost: CostMeasure) -> str:
    """Returns sentences that recommend one of the rows, whose first is the reference.

    A row is recommended if the 95 per cent interval of its paired difference from the reference
    is entirely above -TOLERANCE, and if no other such row costs less. The first sentence names
    the cheaper row that could be shown to be as good with the fewest examples. Empty if no row was
    compared.
    """
    names = names_of(rows)
    compared = [
        (speedup, row["against_reference"], names[number])
        for number, row in enumerate(rows)
        if (speedup := speedup_of(row, cost)) and row["against_reference"].get("accuracy")
    ]
    if not compared:
        return ""
    cheaper = sorted((entry for entry in compared if entry[0] > 1.0), key=lambda entry: -entry[0])
    shown = [entry for entry in cheaper if entry[1]["accuracy"]["low"] > -TOLERANCE]
    worse = f"no worse than the reference by more than {TOLERANCE} at 95 %"
    text = f"Keep {names[0]}: no setting with {cost.less} is shown to be {worse}."
    if shown:
        speedup, against, name = shown[0]
        text = f"Take {name}: {worse} ({_difference_text(against)}), {_times(speedup, cost)}."
        cheaper = cheaper[: cheaper.index(shown[0])]
    undecided = [entry for entry in cheaper if entry[1]["accuracy"]["value"] > -TOLERANCE]
    if not undecided:
        return text
    speedup, against, name = min(undecided, key=lambda entry: _num_needed(entry[1]))
    return (
        f"Undecided: {name} ({_difference_text(against)}; {_times(speedup, cost)}). If its "
        f"difference stays, about {_num_needed(against):.0f} examples would show that it is "
        f"{worse}. {text}"
    )


def _difference_text(against: Mapping[str, Any]) -> str:
    difference = against["accuracy"]
    value, low, high = (f"{difference[name]:+.3f}" for name in ("value", "low", "high"))
    return f"difference {value} [{low}, {high}] on {against['num_shared']} examples"


def _times(speedup: float, cost: CostMeasure) -> str:
    return f"{speedup:.1f} times {cost.less}" if speedup >= 1.05 else f"hardly {cost.less}"


def _num_needed(against: Mapping[str, Any]) -> float:
    """Returns the number of examples, to two digits, that put the interval's low end at -TOLERANCE.

    The width of the interval falls with the square root of the number of examples.
    """
    difference = against["accuracy"]
    share = (difference["value"] - difference["low"]) / (difference["value"] + TOLERANCE)
    return float(f"{against['num_shared'] * share**2:.2g}")
