"""The cost of each answer to the harness, whose own records have no room for it."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from eval.lm_harness.likelihood import Pair, ScoredAnswer
from eval.lm_harness.requests import LmJob
from eval.metrics.metrics import tokens_per
from eval.metrics.statistics import mean, percentile

Key: TypeAlias = tuple[str, int, int, int, str]
"""Task, document, request of the document, repeat of the request, and its type."""

_GENERATED = ("length", "nfe", "target_nfe", "query_positions")
_SCORED = ("length", "nfe", "query_positions", "standard_error")


class CostLedger:
    """The cost of every answer, once each, even if the harness repeats a request."""

    def __init__(self) -> None:
        self._records: dict[Key, dict[str, Any]] = {}

    def add(self, job: LmJob, cost: Mapping[str, Any]) -> None:
        """Notes an answer's cost; a later one takes the place of an earlier one."""
        request, repeat = job
        # Requests made by hand have no number; each is its own document.
        doc_id = len(self._records) if request.doc_id is None else request.doc_id
        key = (request.task_name or "", doc_id, request.idx, repeat, request.request_type)
        names = ("task", "doc_id", "idx", "repeat", "request")
        self._records[key] = dict(zip(names, key, strict=True)) | dict(cost)

    def take_over(self, other: "CostLedger") -> None:
        """Notes the costs that another process noted."""
        self._records |= other._records

    def records(self) -> list[dict[str, Any]]:
        """Returns all records known to this process, in order of task and document."""
        return [self._records[key] for key in sorted(self._records)]

    def summary(self) -> dict[str, Any]:
        """Returns totals for each type of request, ready for JSON."""
        by_type: dict[str, list[dict[str, Any]]] = {}
        for record in self.records():
            by_type.setdefault(record["request"], []).append(record)
        return {name: _summary(records) for name, records in by_type.items()}


def cost_of_score(pair: Pair, scored: ScoredAnswer) -> dict[str, Any]:
    """Returns the cost of scoring an answer, and the score."""
    prompt, answer = pair
    return {
        "prompt_length": len(prompt),
        "length": len(answer),
        "nfe": scored.nfe,
        "query_positions": scored.query_positions,
        "log_likelihood": scored.estimate.log_likelihood,
        "standard_error": scored.estimate.standard_error,
    }


def _summary(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    def column(name: str) -> list[Any]:
        return [record[name] for record in records]

    shares_s = [record["batch_s"] / record["batch_length"] for record in records]
    if records[0]["request"] != "generate_until":
        means = {name: mean(column(name)) for name in _SCORED}
        return {"num_answers": len(records), **means, "answers_per_second": 1 / mean(shares_s)}
    return {
        "num_answers": len(records),
        "tokens_per_forward": tokens_per(column("length"), column("nfe")),
        **{name: mean(column(name)) for name in _GENERATED},
        "tokens_per_second": tokens_per(column("length"), shares_s),
        "latency_s": {
            name: percentile(column("batch_s"), share)
            for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
        },
    }
