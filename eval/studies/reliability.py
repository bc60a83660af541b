"""Reliability of confidence, from stored traces: nothing is decoded.

A trace counts, by confidence, the proposals of every state for every open position, committed or
not, and how many of them became the final token. A decode with another threshold would commit
other proposals, and see other states afterwards.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from eval.runs.answers import NUM_BINS
from eval.runs.records import Record, proposals_of


class Bin(NamedTuple):
    """Proposals whose confidence is in [low, high), or in [low, 1].

    `confidence` is their mean; `agreement` is the share of proposals that are the final token. In
    the same states, a threshold of `low` would have committed `share` of all proposals, of which
    `share_final` are the final tokens; a decode would see other states.
    """

    low: float
    high: float
    num_commits: int
    confidence: float
    agreement: float
    share: float
    share_final: float


class Reliability(NamedTuple):
    """A reliability diagram: the bins that hold proposals, by rising confidence.

    `calibration_error` is the expected calibration error: the mean distance between confidence and
    agreement, weighted by the bins' counts.
    """

    bins: tuple[Bin, ...]
    calibration_error: float
    num_commits: int


def reliability_of_proposals(records: Iterable[Record]) -> Reliability:
    """Measures how often the proposals of all states, committed or not, are the final tokens.

    A position up to EOS counts once for each state in which it was open. Bins are 0.05 wide. Raises
    ValueError if no record has proposals, or proposals are damaged.

    Source: Guo et al. 2017, "On Calibration of Modern Neural Networks",
    https://arxiv.org/abs/1706.04599, reliability diagram and expected calibration error.

    Differs: There is no label for each token. A token agrees if it is the final one.
    """
    sums = np.zeros((NUM_BINS, 3))
    for record in records:
        binned = proposals_of(record)
        if binned is None:
            continue
        if len(binned) != NUM_BINS or any(len(counts) != 3 for counts in binned):
            raise ValueError(
                f"Proposals of a record must be {NUM_BINS} bins of 3 numbers, got others for "
                f"{record['example']}; run anew into another folder."
            )
        sums += np.array(binned)
    num_commits = sums[:, 0].sum()
    if not num_commits:
        raise ValueError("Reliability needs records with proposals, got none; run with traces.")
    # Sums from the highest bin down: the proposals that reach the lower end of a bin.
    reached = sums[::-1].cumsum(0)[::-1]
    bins = [
        Bin(
            i / NUM_BINS, (i + 1) / NUM_BINS, int(count), total / count, agreeing / count,
            float(reached[i, 0] / num_commits), float(reached[i, 1] / reached[i, 0]),
        )
        for i, (count, agreeing, total) in enumerate(sums.tolist())
        if count
    ]  # fmt: skip
    distance = np.abs(sums[:, 2] - sums[:, 1]).sum()
    return Reliability(tuple(bins), float(distance / num_commits), int(num_commits))
