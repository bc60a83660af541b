"""The advice of a report: the cheapest setting that is shown to be as good as the reference."""

from collections.abc import Sequence

from eval.metrics.costs import CostMeasure, Row, speedup_of
from eval.reports.names import names_of

TOLERANCE = 0.02
"""Loss of accuracy, in [0, 1], that the advice accepts."""


def advice(rows: Sequence[Row], cost: CostMeasure) -> str:
    """Returns sentences that recommend one of the rows, whose first is the reference.

    A row is recommended if the 95 per cent interval of its paired difference from the reference
    is above -TOLERANCE as a whole, and if no other such row costs less. The first sentence names
    the cheaper row that the fewest more examples could show to be as good. Empty if nothing was
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
    cheaper = sorted((one for one in compared if one[0] > 1.0), key=lambda one: -one[0])
    shown = [one for one in cheaper if one[1]["accuracy"]["low"] > -TOLERANCE]
    worse = f"no worse than the reference by more than {TOLERANCE} at 95 %"
    said = f"Keep {names[0]}: no setting with {cost.less} is shown to be {worse}."
    if shown:
        speedup, against, name = shown[0]
        said = f"Take {name}: {worse} ({_measured(against)}), {_times(speedup, cost)}."
        cheaper = cheaper[: cheaper.index(shown[0])]
    undecided = [one for one in cheaper if one[1]["accuracy"]["value"] > -TOLERANCE]
    if not undecided:
        return said
    speedup, against, name = min(undecided, key=lambda one: _wanted(one[1]))
    return (
        f"Undecided: {name} ({_measured(against)}; {_times(speedup, cost)}). If its difference "
        f"stays, about {_wanted(against):.0f} examples would show that it is {worse}. {said}"
    )


def _measured(against: Row) -> str:
    found = against["accuracy"]
    value, low, high = (f"{found[name]:+.3f}" for name in ("value", "low", "high"))
    return f"difference {value} [{low}, {high}] on {against['num_shared']} examples"


def _times(speedup: float, cost: CostMeasure) -> str:
    return f"{speedup:.1f} times {cost.less}" if speedup >= 1.05 else f"hardly {cost.less}"


def _wanted(against: Row) -> float:
    """Returns how many examples, to two digits, put the lower end of the interval at -TOLERANCE.

    The width of the interval falls with the square root of the number of examples.
    """
    found = against["accuracy"]
    share = (found["value"] - found["low"]) / (found["value"] + TOLERANCE)
    return float(f"{against['num_shared'] * share**2:.2g}")
