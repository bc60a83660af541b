"""Evaluation: tasks, runs, metrics, reports, and calibration of decoding settings.

frame = eval.frame("results")                       # one row for each record, in pandas
found = eval.compare("results/slow", "results/fast")  # paired difference, interval, test
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pandas

    from eval.reports.comparison import Comparison, Results
    from eval.reports.pooling import Pool

__all__ = ["compare", "frame", "results"]

# What these do is imported when they are called: help and reports need no pandas.


def compare(first: "Pool | str | Path", second: "Pool | str | Path") -> "Comparison":
    """Compares the accuracy of two settings on the examples that both have.

    Args:
        first: The reference: a results folder of one setting, or one of `results(folder)`.
        second: What is compared with it, likewise.

    Raises:
        ValueError: If a folder holds several settings, or they share no scored example.
    """
    from eval.reports.comparison import compare

    return compare(first, second)


def results(folder: "str | Path") -> "Results":
    """Returns the settings of a results folder with their records, seeds together.

    Raises:
        ValueError: If it is none.
    """
    from eval.reports.comparison import results

    return results(folder)


def frame(folder: "str | Path") -> "pandas.DataFrame":
    """Returns a results folder as a pandas frame: a row for each record, a column for each field.

    Raises:
        ValueError: If it is none, or pandas is not installed.
    """
    from eval.reports.comparison import frame

    return frame(folder)
