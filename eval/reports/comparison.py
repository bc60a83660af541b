"""Results in Python: settings of a folder, their paired comparison, records as a pandas frame."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from eval.metrics.statistics import mean
from eval.reports.pairs import difference, paired
from eval.reports.pooling import Pool, pools
from eval.reports.summary import primary_scores
from eval.runs.records import Folder

if TYPE_CHECKING:
    import pandas

Results: TypeAlias = Sequence[Pool]
"""The settings of a folder, in its order."""


@dataclass(frozen=True)
class Comparison:
    """Accuracy of two settings on the examples that both have.

    Attributes:
        num_shared: How many examples these are.
        first: Accuracy of the reference.
        second: Accuracy of the other.
        difference: Second less first.
        low: Lower end of the 95 per cent interval of the difference.
        high: Upper end.
        interval: "score": Tango's, for scores of 0 and 1. "bootstrap" over examples otherwise.
        gained: Examples that only the second gets right; None unless scores are 0 or 1.
        lost: Examples that only the first gets right, likewise.
        p_value: McNemar's exact test, two-sided, likewise.
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


def results(folder: str | Path) -> Results:
    """Returns the settings of a results folder with their records, seeds together."""
    return pools(Folder(folder).results())


def compare(first: Pool | str | Path, second: Pool | str | Path) -> Comparison:
    """Compares the accuracy of two settings on the examples that both have."""
    one, other = _pool(first), _pool(second)
    before, after = paired(primary_scores(one), primary_scores(other))
    if not before:
        raise ValueError(
            f"Settings must share scored examples to be compared, got none in common: "
            f"{one.settings.task} and {other.settings.task}."
        )
    found = difference(before, after)
    interval, test = found["accuracy"], found.get("mcnemar", {})
    return Comparison(
        num_shared=len(before),
        first=mean(before),
        second=mean(after),
        difference=interval.pop("value"),
        **interval,
        **test,
    )


def frame(folder: str | Path) -> "pandas.DataFrame":
    """Returns a row for each record: its settings, costs and scores, these as `score.<name>`."""
    try:
        import pandas
    except ImportError:
        raise ValueError(
            'A frame needs the package pandas; install it with: pip install ".[eval]", in the '
            "clone of this repository."
        ) from None
    rows = []
    for settings, records in Folder(folder).results().items():
        written = settings.written()
        for record in records:
            scores = {f"score.{name}": value for name, value in record.get("scores", {}).items()}
            own = {name: v for name, v in record.items() if name not in ("scores", "settings")}
            rows.append({**written, **own, **scores})
    return pandas.DataFrame(rows)


def _pool(run: Pool | str | Path) -> Pool:
    if isinstance(run, Pool):
        return run
    found = results(run)
    if len(found) != 1:
        raise ValueError(
            f"A run that is compared must be one setting, got {run} with {len(found)}; "
            "choose one of eval.results(folder)."
        )
    return found[0]
