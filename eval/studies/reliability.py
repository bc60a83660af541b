"""Reliability of confidence, and what-if questions, from stored traces: nothing is decoded.

A trace holds, for each position, the confidence at its commit, and which commits were taken back.
It tells whether a token that was committed at some confidence is the final one, and which commits
another threshold would not have made *in the same states*. It also counts, by confidence, the
proposals of every state for every open position, committed or not, and how many of them became the
final token. A decode with another threshold would see other states from there on.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Shaped

from eval.runs.answers import NUM_BINS as NUM_PROPOSAL_BINS
from eval.runs.records import Record, proposals_of

NUM_BINS = 10


class Bin(NamedTuple):
    """Commits, or proposals, whose confidence is in [low, high), or in [low, 1].

    `confidence` is their mean; `agreement` is the share of tokens that are the final ones. A
    threshold of `low` would have committed `share` of all in the same states, of which
    `share_final` are the final tokens; that is not a decode.
    """

    low: float
    high: float
    num_commits: int
    confidence: float
    agreement: float
    share: float
    share_final: float


class Reliability(NamedTuple):
    """A reliability diagram: the bins that hold commits, by rising confidence.

    `calibration_error` is the expected calibration error: the mean distance between confidence and
    agreement, weighted by the bins' counts.
    """

    bins: tuple[Bin, ...]
    calibration_error: float
    num_commits: int


def reliability(records: Iterable[Record]) -> Reliability:
    """Bins the commits of a setting by their confidence and says how often their tokens stayed.

    Records without a trace do not count; raises ValueError if none has a trace.

    Source: Guo et al. 2017, "On Calibration of Modern Neural Networks",
    https://arxiv.org/abs/1706.04599, reliability diagram and expected calibration error.

    Differs: There is no label for each token. A token agrees if it is the final one.
    """
    found = np.zeros((NUM_BINS, 3))
    for confidence, agrees in _commits(records):
        found[min(int(confidence * NUM_BINS), NUM_BINS - 1)] += (1, agrees, confidence)
    if not found[:, 0].any():
        raise ValueError("Reliability needs records with traces, got none; run without --no-trace.")
    return _diagram(found)


def reliability_of_proposals(records: Iterable[Record]) -> Reliability:
    """Says how often the proposals of all states, committed or not, are the final tokens.

    As `reliability`, over every open position of every state up to EOS; a position counts once for
    each state in which it was open. Bins are 0.05 wide. Raises ValueError if no record has
    proposals, or a record's are damaged.
    """
    return _diagram(_proposals(records))


def _diagram(found: Shaped[np.ndarray, "N 3"]) -> Reliability:
    """Returns the diagram of bins: how many, how many of them agree, their summed confidence."""
    # Summed from the highest bin down: all that reach a bin's lower end.
    reached = found[::-1].cumsum(0)[::-1]
    bins = [
        Bin(
            i / len(found), (i + 1) / len(found), int(count), total / count, agreeing / count,
            float(reached[i, 0] / reached[0, 0]), float(reached[i, 1] / reached[i, 0]),
        )
        for i, (count, agreeing, total) in enumerate(found.tolist())
        if count
    ]  # fmt: skip
    num_commits = found[:, 0].sum()
    distance = np.abs(found[:, 2] - found[:, 1]).sum()
    return Reliability(tuple(bins), float(distance / num_commits), int(num_commits))


def _proposals(records: Iterable[Record]) -> Shaped[np.ndarray, "N 3"]:
    """Sums the proposals of all records by bin: how many, how many agree, summed confidence."""
    found = np.zeros((NUM_PROPOSAL_BINS, 3))
    for record in records:
        told = proposals_of(record)
        if told is None:
            continue
        if len(told) != NUM_PROPOSAL_BINS or any(len(one) != 3 for one in told):
            raise ValueError(
                f"Proposals of a record must be {NUM_PROPOSAL_BINS} bins of 3 numbers, got others "
                f"for {record['example']}; run anew into another folder."
            )
        found += np.array(told)
    if not found[:, 0].any():
        raise ValueError("Reliability needs records with proposals, got none; run with traces.")
    return found


def _commits(records: Iterable[Record]) -> Iterator[tuple[float, bool]]:
    """Yields the confidence of every commit up to EOS, and if its token is the final one."""
    for record in records:
        if record["error"] is not None or record["trace"] is None:
            continue
        trace = record["trace"]
        for own in trace["confidences"][: record["length"]]:
            if own is not None:
                yield own, True
        for position, token, _, own, _ in trace["revisions"]:
            if own is not None and position < record["length"]:
                yield own, token == record["tokens"][position]
