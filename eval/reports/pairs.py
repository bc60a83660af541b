"""Two settings compared on the examples that both have."""

from collections.abc import Sequence

from eval.metrics.costs import Row
from eval.metrics.statistics import (
    detectable_difference,
    mcnemar,
    paired_bootstrap,
    paired_score_interval,
)


def difference(first: Sequence[float], second: Sequence[float]) -> Row:
    """Compares the scores of two settings on the same examples.

    The interval of the difference is Tango's score interval where every score is 0 or 1, and the
    bootstrap's over examples otherwise.
    """
    if not first:
        return {}
    if any(score not in (0, 1) for score in (*first, *second)):
        return {"accuracy": paired_bootstrap(first, second)._asdict() | {"interval": "bootstrap"}}
    test = mcnemar(first, second)
    low, high = paired_score_interval(first, second)
    value = (test.gained - test.lost) / len(first)
    return {
        "accuracy": {"value": value, "low": low, "high": high, "interval": "score"},
        "mcnemar": test._asdict(),
        "detectable_difference": detectable_difference(
            (test.gained + test.lost) / len(first), len(first)
        ),
    }


def paired(first: dict[str, float], second: dict[str, float]) -> tuple[list[float], list[float]]:
    """Returns the values of two settings on the examples that both have, in one order."""
    shared = sorted(first.keys() & second.keys())
    return [first[example] for example in shared], [second[example] for example in shared]
