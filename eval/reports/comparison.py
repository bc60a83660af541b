"""Two settings compared on the examples that both have; results in Python."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.metrics.statistics import mcnemar, mean, paired_bootstrap, paired_score_interval, wilson
from eval.reports.pooling import Key, Pooled, pools, primary_scores
from eval.runs.folder import Folder


@dataclass(frozen=True)
class Comparison:
    """Accuracy of two settings, the reference first, on the examples that both have.

    Attributes:
        num_shared: Number of the examples that both have.
        first: Mean score of the reference.
        second: Mean score of the other setting.
        difference: Second less first; `low` and `high` are its 95 per cent interval.
        interval: "score": Tango's, for scores of 0 and 1. "bootstrap" over examples otherwise;
            "wilson" where all differences are equal.
        gained: Examples that only the second gets right; None unless scores are 0 or 1.
        lost: Examples that only the first gets right; None where `gained` is.
        p_value: McNemar's exact test, two-sided; None where `gained` is.
    """

    num_shared: int
    first: float
    second: float
    difference: float
    low: float
    high: float
    interval: str
    gained: int | None = None
    lost: int | None = None
    p_value: float | None = None


def difference(first: Sequence[float], second: Sequence[float]) -> dict[str, Any]:
    """Compares the scores of two settings on the same examples.

    The interval of the difference is Tango's score interval if every score is 0 or 1; otherwise it
    is the bootstrap interval over examples, or Wilson's if all differences are equal.
    """
    if not first:
        return {}
    if any(score not in (0, 1) for score in (*first, *second)):
        return {"accuracy": _partly_right(first, second)}
    test = mcnemar(first, second)
    low, high = paired_score_interval(first, second)
    value = (test.gained - test.lost) / len(first)
    return {
        "accuracy": {"value": value, "low": low, "high": high, "interval": "score"},
        "mcnemar": test._asdict(),
    }


def _partly_right(first: Sequence[float], second: Sequence[float]) -> dict[str, Any]:
    differences = [after - before for before, after in zip(first, second, strict=True)]
    value = mean(differences)
    if max(differences) - min(differences) > 1e-9:
        return paired_bootstrap(first, second)._asdict() | {"interval": "bootstrap"}
    # The bootstrap interval of equal differences is a point. None of the n examples differs from
    # `value`, so by Wilson's bound a share of at most `most` does among all possible examples, with
    # differences between -1 and 1. If all differences are 0, this is Tango's interval.
    most = wilson(0, len(differences)).high
    low, high = value - most * (1 + value), value + most * (1 - value)
    return {"value": value, "low": low, "high": high, "interval": "wilson"}


def shared_values(
    first: Mapping[Key, float], second: Mapping[Key, float]
) -> tuple[list[float], list[float]]:
    """Returns the values of two settings on the examples that both have, in one order."""
    shared = sorted(first.keys() & second.keys())
    return [first[example] for example in shared], [second[example] for example in shared]


def results(folder: str | Path) -> Sequence[Pooled]:
    """Returns each setting of a results folder with its records under all seeds.

    Raises ValueError if the folder is damaged, or no results folder.
    """
    return pools(Folder(folder).results())


def compare(first: Pooled | str | Path, second: Pooled | str | Path) -> Comparison:
    """Compares the accuracy of two settings on the examples that both have: id, prompt and target.

    Args:
        first: The reference: a results folder of one setting, or one of `results(folder)`.
        second: The setting that is compared with the reference, given likewise.

    Raises:
        ValueError: If a folder holds several settings, or they share no scored example.
    """
    reference, candidate = _pool(first), _pool(second)
    before, after = shared_values(primary_scores(reference), primary_scores(candidate))
    if not before:
        raise ValueError(
            f"Settings must share scored examples to be compared, got none in common: "
            f"{reference.settings.task} and {candidate.settings.task}."
        )
    row = difference(before, after)
    interval, test = row["accuracy"], row.get("mcnemar", {})
    return Comparison(
        num_shared=len(before),
        first=mean(before),
        second=mean(after),
        difference=interval.pop("value"),
        **interval,
        **test,
    )


def records(folder: str | Path) -> list[dict[str, Any]]:
    """Returns a flat dictionary for each record: settings, costs and `score.<name>`.

    Raises ValueError if the folder is damaged, or no results folder.
    """
    rows = []
    for settings, of_setting in Folder(folder).results().items():
        for record in of_setting:
            scores = {f"score.{name}": value for name, value in record.get("scores", {}).items()}
            rest = {name: v for name, v in record.items() if name not in ("scores", "settings")}
            rows.append({**settings.written(), **rest, **scores})
    return rows


def _pool(run: Pooled | str | Path) -> Pooled:
    if isinstance(run, Pooled):
        return run
    run_pools = results(run)
    if len(run_pools) != 1:
        raise ValueError(
            f"A run that is compared must be one setting, got {run} with {len(run_pools)}; "
            "choose one of eval.results(folder)."
        )
    return run_pools[0]
