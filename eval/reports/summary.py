"""Computes a row of numbers for each setting from its records; see `docs/metrics.md`."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from eval.metrics.costs import SummaryRow
from eval.metrics.curves import RowGroup, group_of, mark_fronts, methods, parallel_bench
from eval.metrics.metrics import order_correlation, tokens_per
from eval.metrics.statistics import mean, ratio_of_sums, share_interval, standard_error
from eval.reports.comparison import difference, shared_values
from eval.reports.pooling import Pooled, means_of, per_example, pools, primary_scores
from eval.runs.folder import Folder
from eval.runs.records import Record, score_of
from eval.runs.settings import RunSettings


class FolderSummary(NamedTuple):
    """A results folder that was read once, with the numbers of its settings, ready for JSON.

    The rows of the summary are in the order of `pools`.
    """

    folder: Folder
    results: Mapping[RunSettings, Sequence[Record]]
    pools: list[Pooled]
    summary: dict[str, Any]


def summarise(folder: Folder) -> FolderSummary:
    """Reads a results folder and computes its numbers.

    Settings that differ only in the seed share a row, in which each example counts once, with the
    mean over its seeds. The first row of each model and set of examples is the reference; another
    version of a task has its own reference. An example that raised counts as wrong, and is left out
    of the speed; an example without a defined score counts for speed only. Raises ValueError if the
    folder is damaged or holds no records.
    """
    results = folder.results()
    pooled = pools(results)
    records = [record for pool in pooled for record in pool.records]
    if not records:
        raise ValueError(f"{folder.path} holds no records yet; start its run again.")
    references: dict[RowGroup, Pooled] = {}
    rows = []
    for pool in pooled:
        row = _row(pool)
        reference = references.setdefault(group_of(row["settings"]), pool)
        if reference is not pool:
            row["against_reference"] = _comparison(reference, pool)
        rows.append(row)
    mark_fronts(rows)
    used = {record["machine"] for record in records}
    machines = [machine for name, machine in folder.machines().items() if name in used]
    dates = sorted(record["date"] for record in records if record["date"])
    return FolderSummary(folder, results, pooled, {
        "rows": rows, "methods": methods(rows), "parallel_bench": parallel_bench(rows),
        "git": sorted({record["git"] or "unknown" for record in records}),
        "machines": machines, "dates": [*dates[:1], *dates[-1:]],
    })  # fmt: skip


def _row(pool: Pooled) -> SummaryRow:
    finished, failed = pool.finished, pool.failed
    row: SummaryRow = {
        "settings": pool.settings.written(),
        "seeds": list(pool.seeds),
        "num_records": len(pool.records),
        "num_missing": pool.settings.num_examples * len(pool.seeds) - len(pool.records),
        "num_errors": len(failed),
        "errors": dict(Counter(record["error"] for record in failed).most_common(5)),
        "primary": next((record["primary"] for record in pool.records), None),
        "accuracy": _accuracy(pool),
        "scores": _scores(finished),
        "fronts": [],
    }
    if finished:
        row |= {"order": _order(finished), "timing": _timing(finished)}
        row["decided"] = _decided(finished)
        # In some folders there are answers that were given completely, without a forward.
        decoded = [record for record in finished if record["nfe"] or record["target_nfe"]]
        row |= {"speed": _speed(decoded)} if decoded else {}
        if pool.settings.verifier != "NoVerifier()":
            row["verified"] = _verified(finished)
    return row


def _accuracy(pool: Pooled) -> dict[str, Any] | None:
    """Averages the primary score, with an interval over examples; see `share_interval`.

    With several seeds, each example counts with its mean over them.
    """
    values = list(primary_scores(pool).values())
    if not values:
        return None
    is_binary = all(score_of(record) in (0, 1, None) for record in pool.finished)
    interval, bounds = share_interval(values, is_binary=is_binary)
    return {"value": mean(values), **bounds._asdict(), "interval": interval,
            "standard_error": standard_error(values), "num_examples": len(values)}  # fmt: skip


def _scores(finished: Sequence[Record]) -> dict[str, Any]:
    """Averages every score over the examples that define it; None if no example does."""
    names = sorted({name for record in finished for name in record["scores"]})
    return {
        name: _mean_over_examples((r["example"], r["scores"].get(name)) for r in finished)
        for name in names
    }


def _mean_over_examples(values: Iterable[tuple[str, float | None]]) -> float | None:
    defined = per_example(values)
    return mean(list(defined.values())) if defined else None


def _speed(finished: Sequence[Record]) -> dict[str, Any]:
    """Returns tokens per forward, with intervals, and the mean counts that they come from."""
    means = {
        name: list(means_of(finished, name).values())
        for name in ("length", "nfe", "target_nfe", "committed", "query_positions")
    }

    def ratio_to(costs: Sequence[float]) -> dict[str, Any]:
        return ratio_of_sums(means["length"], costs)._asdict()

    # If drafts need no mask predictor, the target's forwards are the only ones.
    nfe = means["nfe"] if any(means["nfe"]) else means["target_nfe"]
    per_forward = ratio_to(nfe)
    per_any, per_columns = per_forward, None
    if any(means["target_nfe"]):
        per_any = ratio_to([a + b for a, b in zip(means["nfe"], means["target_nfe"], strict=True)])
    else:
        per_columns = ratio_to([columns / 1000 for columns in means["query_positions"]])
    return {
        "tokens_per_forward": per_forward,
        "tokens_per_any_forward": per_any,
        "tokens_per_thousand_columns": per_columns,
        **{name: mean(values) for name, values in means.items()},
    }


def _verified(finished: Sequence[Record]) -> dict[str, Any]:
    """Describes the forwards of a verifier, and how many of its drafts were accepted."""
    gains = [gain for record in finished for gain in record["gains"]]
    names = ("drafted", "accepted", "length", "target_nfe")
    drafted, accepted, length, target_nfe = (sum(means_of(finished, n).values()) for n in names)
    return {
        "accepted_length": sum(gains) / max(1, len(gains)),
        "accepted_lengths": dict(sorted(Counter(gains).items())),
        "acceptance_rate": accepted / drafted if drafted else None,
        "tokens_per_target_forward": length / target_nfe if target_nfe else None,
    }


def _order(finished: Sequence[Record]) -> dict[str, Any]:
    """Describes the order in which positions up to EOS were committed; None without traces."""
    steps = [
        (r["example"], [step for step in r["trace"]["steps"][: r["length"]] if step >= 0])
        for r in finished
        if r["trace"] is not None
    ]
    return {
        "order_correlation": _mean_over_examples((e, order_correlation(seq)) for e, seq in steps)
    }


def _decided(finished: Sequence[Record]) -> dict[str, Any] | None:
    """Describes when results were decided; None without traces, or with old ones.

    `share` is the mean share of the steps after which a result was decided; `by_half` is the share
    of examples whose result was decided at half of the steps. `decided` and `ended` count by the
    number of steps the examples whose result was decided, and whose decode ended.
    """
    steps = [
        (record["example"], *record["trace"]["decided"])
        for record in finished
        if record["trace"] is not None and "decided" in record["trace"]
    ]
    if not steps:
        return None
    return {
        "share": _mean_over_examples((e, at / max(1, last)) for e, at, last in steps),
        "by_half": _mean_over_examples((e, float(2 * at <= last)) for e, at, last in steps),
        "decided": dict(sorted(Counter(at for _, at, _ in steps).items())),
        "ended": dict(sorted(Counter(last for _, _, last in steps).items())),
    }


def _timing(finished: Sequence[Record]) -> dict[str, Any]:
    """Describes wall-clock time, which differs from run to run, unlike everything else.

    The warm-up is left out, unless there is nothing else.
    """
    timed = [record for record in finished if not record["warm_up"]] or finished
    lengths = list(means_of(timed, "length").values())
    # The seconds of a batch are divided equally among its rows.
    shares_s = per_example((r["example"], r["batch_s"] / r["batch_length"]) for r in timed)
    return {"tokens_per_second": tokens_per(lengths, list(shares_s.values()))}


_SPEEDUPS = {
    "step_speedup": ("nfe",),
    "forward_speedup": ("nfe", "target_nfe"),
    "compute_speedup": ("query_positions",),
}


def _comparison(reference: Pooled, pool: Pooled) -> dict[str, Any]:
    """Compares two settings on the examples that both have."""
    scores = shared_values(primary_scores(reference), primary_scores(pool))
    comparison: dict[str, Any] = {"num_shared": len(scores[0])} | difference(*scores)
    before, after = reference.finished, pool.finished
    for name, numbers in _SPEEDUPS.items():
        pairs = [shared_values(means_of(before, n), means_of(after, n)) for n in numbers]
        total = sum(sum(b) for _, b in pairs)
        if pairs[0][0] and total:
            comparison[name] = sum(sum(a) for a, _ in pairs) / total
    return comparison
