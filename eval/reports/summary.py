"""From records to numbers, which `docs/metrics.md` defines: one row for each setting."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import structs

from eval.metrics.costs import Row
from eval.metrics.curves import RowGroup, group_of, mark_fronts, methods, parallel_bench
from eval.metrics.metrics import (
    commits_per_step,
    leftmost_share,
    order_correlation,
    pass_at,
    tokens_per,
    wall_speedup,
)
from eval.metrics.statistics import (
    Bounds,
    bootstrap,
    mean,
    percentile,
    ratio_of_sums,
    standard_error,
    wilson,
)
from eval.reports.comparison import difference, paired
from eval.reports.pooling import Pool, field, per_example, pools, primary_scores
from eval.runs.folder import Folder
from eval.runs.records import Record, score_of
from eval.runs.settings import RunSettings


class MeasuredFolder(NamedTuple):
    """A results folder that was read once, with the numbers of its settings, ready for JSON.

    The rows of the summary are in the order of `pools`.
    """

    folder: Folder
    results: Mapping[RunSettings, Sequence[Record]]
    pools: list[Pool]
    summary: dict[str, Any]


def measured(folder: Folder) -> MeasuredFolder:
    """Reads a results folder and works out its numbers.

    Settings that differ by their seed only are one row, in which each example counts once, with the
    mean over its seeds. The first row of each model and set of examples is the reference; another
    version of a task has one of its own. An example that raised counts as wrong, and not at all for
    speed; one whose score is undefined counts for speed only. Raises ValueError if the folder is
    damaged or holds no records.
    """
    results = folder.results()
    found = pools(results)
    records = [record for pool in found for record in pool.records]
    if not records:
        raise ValueError(f"{folder.path} holds no records yet; start its run again.")
    references: dict[RowGroup, Pool] = {}
    rows = []
    for pool in found:
        row = _row(pool)
        reference = references.setdefault(group_of(row["settings"]), pool)
        if reference is not pool:
            row["against_reference"] = _comparison(reference, pool)
        rows.append(row)
    mark_fronts(rows)
    used = {record["machine"] for record in records}
    machines = [machine for name, machine in folder.machines().items() if name in used]
    dates = sorted(record["date"] for record in records if record["date"])
    return MeasuredFolder(folder, results, found, {
        "rows": rows, "methods": methods(rows), "parallel_bench": parallel_bench(rows),
        "git": _commits(records),
        "machines": machines, "dates": [*dates[:1], *dates[-1:]],
        "skipped": [structs.asdict(one) for one in folder.skipped()],
    })  # fmt: skip


def _row(pool: Pool) -> Row:
    finished, failed = pool.finished, pool.failed
    row: Row = {
        "settings": pool.settings.written(),
        "seeds": list(pool.seeds),
        "num_records": len(pool.records),
        "num_missing": pool.settings.num_examples * len(pool.seeds) - len(pool.records),
        "num_errors": len(failed),
        "git": _commits(pool.records),
        "errors": dict(Counter(record["error"] for record in failed).most_common(5)),
        "primary": next((record["primary"] for record in pool.records), None),
        "accuracy": _accuracy(pool),
        "pass_at": _pass_at(pool),
        "scores": _scores(finished),
        "fronts": [],
    }
    if finished:
        row |= {"order": _order(finished), "timing": _timing(finished)}
        # An answer that a template gives whole takes no forward.
        decoded = [record for record in finished if record["nfe"] or record["target_nfe"]]
        row |= {"speed": _speed(decoded)} if decoded else {}
        if pool.settings.verifier != "NoVerifier()":
            row["verified"] = _verified(finished)
    return row


def _accuracy(pool: Pool) -> Row | None:
    """Averages the primary score, with an interval over examples that is never a point.

    Wilson's interval where every score is 0 or 1. With several seeds it takes each example's mean
    over them as that many right answers: a mean of values in [0, 1] varies at most as a share
    does, so that the interval is rather too wide. Other scores have the bootstrap's.
    """
    values = list(primary_scores(pool).values())
    if not values:
        return None
    counts = all(score_of(record) in (0, 1, None) for record in pool.finished)
    interval, bounds = _interval(values, is_wilson=counts)
    return {"value": mean(values), **bounds._asdict(), "interval": interval,
            "standard_error": standard_error(values), "num_examples": len(values)}  # fmt: skip


def _interval(values: Sequence[float], *, is_wilson: bool) -> tuple[str, Bounds]:
    """Returns Wilson's interval or the bootstrap's, which would have no width if all are equal."""
    if is_wilson or len(set(values)) == 1:
        return "wilson", wilson(math.fsum(values), len(values))
    return "bootstrap", bootstrap(values)


def _pass_at(pool: Pool) -> Row:
    """Estimates by k the probability that one of k answers is right, with the bootstrap's interval.

    The answers to an example are those of the seeds. k doubles from 1 up to the number of answers
    that every example has. Empty with one seed, or where a score is neither 0 nor 1.
    """
    by_example: dict[str, list[float]] = defaultdict(list)
    for record in pool.records:
        score = score_of(record)
        if score is not None:
            by_example[record["example"]].append(score)
    answers = list(by_example.values())
    if len(pool.seeds) == 1 or any(score not in (0, 1) for own in answers for score in own):
        return {}
    found, k = {}, 1
    while k <= min(map(len, answers), default=0):
        values = [pass_at(k, len(own), int(sum(own))) for own in answers]
        _, bounds = _interval(values, is_wilson=False)
        found[str(k)] = {"value": mean(values), **bounds._asdict()}
        k *= 2
    return found


def _scores(finished: Sequence[Record]) -> Row:
    """Averages every score over the examples where it is defined; None where it never is."""
    names = sorted({name for record in finished for name in record["scores"]})
    return {
        name: _mean_over_examples((r["example"], r["scores"].get(name)) for r in finished)
        for name in names
    }


def _mean_over_examples(values: Iterable[tuple[str, float | None]]) -> float | None:
    defined = per_example(values)
    return mean(list(defined.values())) if defined else None


def _speed(finished: Sequence[Record]) -> Row:
    own = {
        name: list(field(finished, name).values())
        for name in ("length", "nfe", "target_nfe", "committed", "query_positions")
    }

    def ratio_to(costs: Sequence[float]) -> Row:
        return ratio_of_sums(own["length"], costs)._asdict()

    # Where drafts ask no mask predictor, the target's forwards are all there are.
    nfe = own["nfe"] if any(own["nfe"]) else own["target_nfe"]
    per_forward = ratio_to(nfe)
    per_any, per_columns = per_forward, None
    if any(own["target_nfe"]):
        per_any = ratio_to([a + b for a, b in zip(own["nfe"], own["target_nfe"], strict=True)])
    else:
        per_columns = ratio_to([columns / 1000 for columns in own["query_positions"]])
    return {
        "tokens_per_forward": per_forward,
        "tokens_per_any_forward": per_any,
        "tokens_per_thousand_columns": per_columns,
        "mean_of_ratios": mean(
            [length / forwards for length, forwards in zip(own["length"], nfe, strict=True)]
        ),
        "committed_per_forward": sum(own["committed"]) / sum(nfe),
        **{name: mean(values) for name, values in own.items()},
        "forwards_share": mean(list(_shares(finished, "batch_forwards").values())),
        "target_forwards_share": mean(list(_shares(finished, "batch_target_forwards").values())),
    }


def _verified(finished: Sequence[Record]) -> Row:
    """Describes the forwards of a verifier, and how many of its drafts were accepted."""
    gains = [gain for record in finished for gain in record["gains"]]
    names = ("drafted", "accepted", "length", "target_nfe")
    drafted, accepted, length, target_nfe = (sum(field(finished, n).values()) for n in names)
    num_examples = len(field(finished, "drafted"))
    return {
        "accepted_length": sum(gains) / max(1, len(gains)),
        "accepted_lengths": dict(sorted(Counter(gains).items())),
        "drafted": drafted / num_examples,
        "accepted": accepted / num_examples,
        "acceptance_rate": accepted / drafted if drafted else None,
        "tokens_per_target_forward": length / target_nfe if target_nfe else None,
    }


def _order(finished: Sequence[Record]) -> Row:
    """Describes in which order positions up to EOS were committed; empty without traces."""
    steps = [
        (r["example"], [step for step in r["trace"]["steps"][: r["length"]] if step >= 0])
        for r in finished
        if r["trace"] is not None
    ]
    widths = sum((Counter(commits_per_step(own)) for _, own in steps), Counter[int]())
    return {
        "order_correlation": _mean_over_examples((e, order_correlation(own)) for e, own in steps),
        "leftmost_share": _mean_over_examples((e, leftmost_share(own)) for e, own in steps),
        "commits_per_step": dict(sorted(widths.items())),
    }


def _timed(finished: Sequence[Record]) -> Sequence[Record]:
    """Leaves the warm-up out; if nothing else is there it must do."""
    return [record for record in finished if not record["warm_up"]] or finished


def _timing(finished: Sequence[Record]) -> Row:
    """Describes wall-clock time, which differs from run to run, unlike everything else."""
    timed = _timed(finished)
    lengths = list(field(timed, "length").values())
    latencies = [record["batch_s"] for record in timed]
    return {
        "tokens_per_second": tokens_per(lengths, list(_shares(timed, "batch_s").values())),
        "latency_s": {f"p{share}": percentile(latencies, share / 100) for share in (50, 90, 99)},
        "num_timed": len(timed),
        "is_warm": not any(record["warm_up"] for record in timed),
        "fronts": [],
    }  # fmt: skip


def _shares(records: Iterable[Record], name: str) -> dict[str, float]:
    """Divides a number of the batch among its rows."""
    numbers: Iterable[Mapping[str, Any]] = records
    return per_example((r["example"], r[name] / r["batch_length"]) for r in numbers)


_SPEEDUPS = {
    "step_speedup": ("nfe",),
    "forward_speedup": ("nfe", "target_nfe"),
    "compute_speedup": ("query_positions",),
}


def _comparison(reference: Pool, own: Pool) -> Row:
    """Compares two settings on the examples that both have."""
    scores = paired(primary_scores(reference), primary_scores(own))
    found: Row = {"num_shared": len(scores[0])} | difference(*scores)
    before, after = reference.finished, own.finished
    for name, numbers in _SPEEDUPS.items():
        pairs = [paired(field(before, number), field(after, number)) for number in numbers]
        total = sum(sum(b) for _, b in pairs)
        if pairs[0][0] and total:
            found[name] = sum(sum(a) for a, _ in pairs) / total
    seconds_s = paired(_shares(_timed(before), "batch_s"), _shares(_timed(after), "batch_s"))
    if seconds_s[0]:
        found["timing"] = {"wall_speedup": wall_speedup(*seconds_s)}
    return found


def _commits(records: Iterable[Record]) -> list[str]:
    return sorted({record["git"] or "unknown" for record in records})
