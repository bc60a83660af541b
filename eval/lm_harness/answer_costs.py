"""The cost of each generated answer, for which the harness' own records have no room."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from eval.metrics.metrics import tokens_per
from eval.metrics.statistics import mean

RequestKey: TypeAlias = tuple[str, int, int, int]
"""Task, document, request of the document and repeat of the request."""

CostLedger: TypeAlias = dict[RequestKey, dict[str, Any]]
"""The cost of every answer, once each, even if the harness repeats a request."""

_NAMES = ("task", "doc_id", "idx", "repeat")


def records_of(ledger: CostLedger) -> list[dict[str, Any]]:
    """Returns all costs, in order of task and document."""
    return [dict(zip(_NAMES, key, strict=True)) | ledger[key] for key in sorted(ledger)]


def summary_of(costs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns totals, ready for JSON; empty if nothing was generated."""
    if not costs:
        return {}

    def column(name: str) -> list[Any]:
        return [cost[name] for cost in costs]

    shares_s = [cost["batch_s"] / cost["batch_length"] for cost in costs]
    names = ("length", "nfe", "target_nfe", "query_positions")
    return {
        "num_answers": len(costs),
        "tokens_per_forward": tokens_per(column("length"), column("nfe")),
        **{name: mean(column(name)) for name in names},
        "tokens_per_second": tokens_per(column("length"), shares_s),
    }
