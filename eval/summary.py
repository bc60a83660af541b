"""From records to numbers: one row for each setting, compared with the reference."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

from eval.metrics import (
    Point,
    aup,
    commits_per_step,
    leftmost_share,
    mean_ratio,
    order_correlation,
    pareto_front,
    speed_at_accuracy,
    tokens_per_second,
    wall_speedup,
)
from eval.records import Folder, Record, Settings
from eval.statistics import (
    mcnemar,
    mean,
    paired_bootstrap,
    percentile,
    ratio_of_sums,
    standard_error,
    wilson,
)

Row: TypeAlias = dict[str, Any]
"""Numbers of one setting, ready for JSON."""

ACCURACIES = (0.8, 0.75, 0.7)


def summarise(folder: Folder) -> dict[str, Any]:
    """Returns what a results folder shows, ready for JSON.

    Of each task and model the first setting is the reference. An example that raised counts as
    wrong, and not at all for speed; one whose score is undefined counts for speed only.

    Raises:
        ValueError: If the folder is damaged or holds no records.
    """
    settings = folder.settings()
    records = _by_setting(folder.records())
    if not any(records.get(setting.key("")) for setting in settings):
        raise ValueError(f"{folder.path} holds no records yet; start its run again.")
    references: dict[tuple[str, str], list[Record]] = {}
    rows = []
    for setting in settings:
        own = records.get(setting.key(""), [])
        reference = references.setdefault((setting.model, setting.task), own)
        row = _row(setting, own)
        if reference is not own:
            row["against_reference"] = _comparison(reference, own)
        rows.append(row)
    for group in _groups(rows, "model", "task").values():
        _mark_front(group)
    return {"rows": rows, "methods": _methods(rows), "git": _shas(records.values())}


def _by_setting(records: Iterable[Record]) -> dict[str, list[Record]]:
    grouped: dict[str, list[Record]] = defaultdict(list)
    # In the order of the ids, so that the order of writing leaves no trace in any sum.
    for record in sorted(records, key=lambda record: str(record["example"])):
        grouped[record["settings"]].append(record)
    return grouped


def _row(settings: Settings, records: Sequence[Record]) -> Row:
    finished = [record for record in records if record["error"] is None]
    failed = [record for record in records if record["error"] is not None]
    row: Row = {
        "settings": asdict(settings),
        "num_records": len(records),
        "num_missing": settings.num_examples - len(records),
        "num_errors": len(failed),
        "errors": dict(Counter(record["error"] for record in failed).most_common(5)),
        "accuracy": _accuracy(records),
        "scores": _scores(finished),
        "is_on_front": False,
    }
    if finished:
        row |= {"speed": _speed(finished), "order": _order(finished), "timing": _timing(finished)}
    return row


def _accuracy(records: Sequence[Record]) -> Row | None:
    scores = _primary(records)
    if not scores:
        return None
    values = list(scores.values())
    low, high = wilson(sum(values), len(values))
    return {"value": mean(values), "low": low, "high": high,
            "standard_error": standard_error(values), "num_examples": len(values)}  # fmt: skip


def _primary(records: Sequence[Record]) -> dict[str, float]:
    """Returns the primary score by example; an error is wrong, an undefined score is left out."""
    scores = {}
    for record in records:
        score = 0.0 if record["error"] is not None else record["scores"][record["primary"]]
        if score is not None:
            scores[record["example"]] = float(score)
    return scores


def _scores(finished: Sequence[Record]) -> Row:
    """Averages every score over the examples where it is defined; None where it never is."""
    names = sorted({name for record in finished for name in record["scores"]})
    found = {}
    for name in names:
        values = [record["scores"].get(name) for record in finished]
        defined = [float(value) for value in values if value is not None]
        found[name] = mean(defined) if defined else None
    return found


def _speed(finished: Sequence[Record]) -> Row:
    lengths = [record["length"] for record in finished]
    nfe = [record["nfe"] for record in finished]
    per_forward = ratio_of_sums(lengths, nfe)
    return {
        "tokens_per_forward": per_forward._asdict(),
        "mean_of_ratios": mean_ratio(lengths, nfe),
        "nfe": mean(nfe),
        "length": mean(lengths),
        "query_positions": mean([record["query_positions"] for record in finished]),
    }


def _order(finished: Sequence[Record]) -> Row:
    """Describes in which order positions up to EOS were committed; empty without traces."""
    traced = [record for record in finished if record["trace"] is not None]
    steps = [
        [step for step in record["trace"]["steps"][: record["length"]] if step >= 0]
        for record in traced
    ]
    taus = [tau for own in steps if (tau := order_correlation(own)) is not None]
    leftmost = [share for own in steps if (share := leftmost_share(own)) is not None]
    widths: Counter[int] = Counter()
    for own in steps:
        widths.update(commits_per_step(own))
    return {
        "order_correlation": mean(taus) if taus else None,
        "leftmost_share": mean(leftmost) if leftmost else None,
        "commits_per_step": dict(sorted(widths.items())),
    }


def _timing(finished: Sequence[Record]) -> Row:
    """Describes wall-clock time, which differs from run to run, unlike everything else."""
    lengths = [record["length"] for record in finished]
    latencies = [record["batch_s"] for record in finished]
    return {
        "tokens_per_second": tokens_per_second(lengths, _shares_s(finished)),
        "latency_s": {name: percentile(latencies, share) for name, share in
                      (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))},
    }  # fmt: skip


def _shares_s(records: Sequence[Record]) -> list[float]:
    return [record["batch_s"] / record["batch_length"] for record in records]


def _comparison(reference: Sequence[Record], own: Sequence[Record]) -> Row:
    """Compares on the examples that both have."""
    first, second = _primary(reference), _primary(own)
    shared = sorted(first.keys() & second.keys())
    found: Row = {"num_shared": len(shared)}
    if shared:
        scores = [first[i] for i in shared], [second[i] for i in shared]
        found["accuracy"] = paired_bootstrap(*scores)._asdict()
        if all(score in (0, 1) for score in (*scores[0], *scores[1])):
            found["mcnemar"] = mcnemar(*scores)._asdict()
    by_example = {r["example"]: r for r in reference if r["error"] is None}
    pairs = [(by_example[r["example"]], r) for r in own
             if r["error"] is None and r["example"] in by_example]  # fmt: skip
    if pairs:
        before, after = [a for a, _ in pairs], [b for _, b in pairs]
        for name, field in (("step_speedup", "nfe"), ("compute_speedup", "query_positions")):
            found[name] = sum(a[field] for a in before) / sum(b[field] for b in after)
        found["timing"] = {"wall_speedup": wall_speedup(_shares_s(before), _shares_s(after))}
    return found


def _groups(rows: Sequence[Row], *fields: str) -> dict[tuple[str, ...], list[Row]]:
    grouped: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if row["accuracy"] is not None and "speed" in row:
            grouped[tuple(row["settings"][field] for field in fields)].append(row)
    return grouped


def point_of(row: Row) -> Point:
    """Returns a row's place on the plane of speed and accuracy."""
    return Point(row["speed"]["tokens_per_forward"]["value"], row["accuracy"]["value"])


def method_of(settings: Mapping[str, Any]) -> str:
    """Returns the name of a method: the sampler without its numbers, and what goes with it."""
    parts = [settings["sampler"].partition("(")[0]]
    parts += [settings[name].partition("(")[0] for name in ("cache", "verifier")]
    return " + ".join(part for part in parts if part not in ("NoCache", "NoVerifier"))


def _mark_front(rows: Sequence[Row]) -> None:
    for index in pareto_front([point_of(row) for row in rows]):
        rows[index]["is_on_front"] = True


def _methods(rows: Sequence[Row]) -> list[Row]:
    """Scores each method's curve. AUP depends on who else is in the folder: see `best_accuracy`."""
    found = []
    for (model, task), group in _groups(rows, "model", "task").items():
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


def _shas(groups: Iterable[Sequence[Record]]) -> list[str]:
    return sorted({record["git"] for group in groups for record in group if record["git"]})
