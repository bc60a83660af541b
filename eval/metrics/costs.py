"""The costs that a report can compare settings by: forwards and columns."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

SummaryRow: TypeAlias = dict[str, Any]
"""Numbers of one setting, ready for JSON; see `eval.reports.summary`."""


class CostMeasure(NamedTuple):
    """A way to count the work of a decode.

    `name` is the value of `--cost`, `speed` heads the column with the tokens for this cost, `axis`
    is the title of the axis, and `less` ends the sentence "X times ...". `rate` and `speedup` are
    keys of a row.
    """

    name: str
    speed: str
    axis: str
    less: str
    rate: str
    speedup: str


COSTS: Mapping[str, CostMeasure] = {
    cost.name: cost
    for cost in (
        CostMeasure("forwards", "tokens/forward", "tokens per forward", "fewer forwards",
             "tokens_per_any_forward", "forward_speedup"),
        CostMeasure("columns", "tokens/1000 columns", "tokens per 1000 columns", "fewer columns",
             "tokens_per_thousand_columns", "compute_speedup"),
    )
}  # fmt: skip


def usual_cost(rows: Sequence[SummaryRow]) -> CostMeasure:
    """Returns the cost that rows are compared by if the user chooses none.

    This is columns, because a forward with a cache computes fewer columns; it is forwards if a
    verifier's target ran, because the target's columns are not counted.
    """
    has_target = any(row["speed"]["target_nfe"] for row in rows if "speed" in row)
    return COSTS["forwards" if has_target else "columns"]


def speed_of(row: SummaryRow, cost: CostMeasure) -> Mapping[str, Any] | None:
    """Returns a row's tokens for a cost with their interval; None where the cost is unknown."""
    if "speed" not in row:
        return None
    estimate: Mapping[str, Any] | None = row["speed"][cost.rate]
    return estimate


def speedup_of(row: SummaryRow, cost: CostMeasure) -> float | None:
    """Returns how many times less a row costs than its reference; None if the cost is unknown."""
    against = row.get("against_reference")
    if not against or speed_of(row, cost) is None:
        return None
    speedup: float | None = against.get(cost.speedup)
    return speedup
