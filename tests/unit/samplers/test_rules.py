"""Worked examples of rules without a state: equality, ties, holes and extremes.

Golden runs of the official code, and the independent loop, check the rules in general.
"""

from collections.abc import Sequence

import pytest
from plugins_under_test import committed, pinned, with_confidences, with_entropies

from samplers import View, parse


def exact(*row: float, committed: Sequence[int] = (), **others: Sequence[float]) -> View:
    """Returns a view of one row with exact confidences, which no softmax has rounded."""
    view = with_confidences(row, committed=committed)
    return pinned(view, confidence=[row], **{name: [values] for name, values in others.items()})


RISING = with_entropies([0.01, 0.02, 0.05, 0.08, 0.5])
TWO_ORDERS = pinned(
    with_entropies([0.1, 0.6, 0.5, 0.01]),
    confidence=[[0.9, 0.8, 0.7, 0.6]], margin=[[0.1, 0.2, 0.3, 0.4]],
)  # fmt: skip
LEAPS = (0.95, 0.80, 0.70, 0.76, 0.75, 0.76, 0.89, 0.10, 0.20, 0.30, 0.85, 0.91)
AROUND = (0.8, 0.8, 0.95, 0.8, 0.8)
EDGES = (0.5, 0.6, 0.5, 0.7, 0.5, 0.5, 0.6)
BOTH = (0.75, 0.5, 0.0, 0.25, 0.0, 0.26, 0.9)


def first(count: int) -> list[list[int]]:
    return [[*range(count)]]


# The rule, the positions that it commits in each row, and the view.
EXAMPLES: list[tuple[str, list[list[int]], View]] = [
    # A confidence exactly at the threshold is committed; otherwise each row's own best.
    ("ConfidenceThreshold(0.75)", [[0, 2]], exact(0.75, 0.7499999, 0.875)),
    ("ConfidenceThreshold(0.9)", [[0, 2], [1], [0]],
     with_confidences([0.95, 0.2, 0.92], [0.2, 0.3, 0.1], [0.6, 0.6, 0.5])),
    # A public implementation also commits what is within 1e-5 of the best.
    ("ConfidenceThreshold(0.9)", [[0]], with_confidences([0.5, 0.499995, 0.49])),
    # Factor. If only the least confident fails, "official" commits it too, so of two masks both.
    # A single mask is always committed, and all masks are if all pass.
    *((f"Factor(1.0, '{variant}')", first(count), view)
      for view, *counts in ((with_confidences([0.99, 0.95, 0.90, 0.2]), 3, 3, 4),
                            (with_confidences([0.9, 0.3]), 1, 1, 2),
                            (exact(0.75, 0.75, 0.75), 2, 3, 3),
                            (with_confidences([0.99, 0.98, 0.97, 0.96]), 4, 4, 4),
                            (with_confidences([0.1]), 1, 1, 1),
                            (with_confidences([0.9, 0.9], committed=[0, 1]), 0, 0, 0))
      for variant, count in zip(("paper", "inclusive", "official"), counts, strict=True)),
    ("Factor(inf)", first(3), with_confidences([0.3, 0.99, 0.5])),
    ("Factor(0.0)", [[0]], exact(1.0, 1.0, 1.0)),
    # Holes in the block do not count.
    ("Factor(0.75)", [[0, 2, 4]],
     with_confidences([0.99, 1.0, 0.95, 1.0, 0.82], committed=[1, 3])),
    # Frechet: the lead must exceed the margin; a joint probability is never below zero.
    ("Frechet(0.5)", [[0]], exact(1.0, 0.75)),
    ("Frechet(0.4375)", [[0, 1]], exact(1.0, 0.75)),
    ("Frechet(1.0)", [[1], [0]], with_confidences([0.4, 0.99, 0.99], [0.1, 0.1, 0.1])),
    ("Frechet(-0.95)", [[0, 1]], with_confidences([0.1, 0.1])),
    # EntropyBound: the sum of all but the last; a prefix of its order and nothing after a failure.
    *((f"EntropyBound({bound})", first(count), RISING)
      for bound, count in ((0.02, 2), (0.1, 4), (0.2, 5))),
    ("EntropyBound(0.2, 'confidence')", [[0, 1]], TWO_ORDERS),
    ("EntropyBound(0.2, 'margin')", [[2, 3]], TWO_ORDERS),
    ("EntropyBound(0.0)", [[1], [0]], with_entropies([0.2, 0.1, 0.6], [0.6, 0.6, 0.6])),
    ("EntropyBound(0.375)", first(3), exact(0.5, 0.5, 0.5, entropy=(0.25, 0.5, 0.125))),
    ("EntropyBound(0.374)", [[0, 2]], exact(0.5, 0.5, 0.5, entropy=(0.25, 0.5, 0.125))),
    # EntropyThreshold, in nats.
    ("EntropyThreshold(0.5)", [[0, 2]], exact(0.5, 0.5, 0.5, entropy=(0.5, 0.5000001, 0.25))),
    ("EntropyThreshold(0.1)", [[1], [1, 2]], with_entropies([0.3, 0.2, 0.6], [0.2, 0.09, 0.05])),
    ("EntropyThreshold(0.0)", [[1]], exact(0.9, 0.1, entropy=(0.6, 0.4))),
    # LocalLeap: both thresholds include equality, and so does the radius, which runs across holes.
    ("LocalLeap()", [[0, 1, 3, 4]], exact(*LEAPS, committed=[11])),
    ("LocalLeap(0.875, 0.5, 1)", [[0, 1]], exact(0.5, 0.875, 0.4999, 0.5)),
    ("LocalLeap(radius=1)", [[1, 2, 3]], exact(*AROUND)),
    ("LocalLeap(radius=40)", first(5), exact(*AROUND)),
    ("LocalLeap(radius=3)", [[0, 3]], with_confidences([0.95, 0.5, 0.5, 0.8, 0.8],
                                                       committed=[1, 2])),
    # Committed tokens are no anchors.
    ("LocalLeap(relaxed_threshold=0.6)", [[1]], with_confidences([0.99, 0.8, 0.7], committed=[0])),
    # Hierarchy: both thresholds exclude equality, and of a tied run the leftmost is committed.
    ("Hierarchy()", [[0]], with_confidences([0.3, 0.2, 0.1])),
    ("Hierarchy(0.25, 0.5)", [[0, 6]], exact(*BOTH, committed=[2, 4])),
    ("Hierarchy(0.24, 0.49)", [[0, 1, 3, 6]], exact(*BOTH, committed=[2, 4])),
    ("Hierarchy()", [[0, 4]], exact(0.6, 0.6, 0.6, 0.5, 0.6, 0.6, committed=[3])),
    # Runs end at given tokens and at the edges of the block, beyond which masks are not open.
    ("Hierarchy()", [[1, 3, 6]], with_confidences(EDGES, committed=[2, 4])),
    ("Hierarchy()", [[1, 3]], with_confidences(EDGES, committed=[2, 4, 5, 6])),
    # The orders of FixedSchedule rank by their own statistic; given tokens are not counted.
    *((f"FixedSchedule(3, '{order}')", [[place]],
       exact(0.9, 0.8, 0.7, margin=(0.1, 0.3, 0.2), entropy=(0.5, 0.6, 0.1)))
      for place, order in enumerate(("confidence", "margin", "entropy"))),
    ("FixedSchedule(2)", [[3, 5]],
     with_confidences([0.5, 0.9, 0.5, 0.6, 0.9, 0.7], committed=[1, 4])),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "positions", "view"), EXAMPLES)
def test_a_rule_commits_these_positions(rule: str, positions: list[list[int]], view: View) -> None:
    assert committed(parse(rule), view) == positions


def test_positions_outside_the_block_add_no_entropy() -> None:
    view = with_entropies([0.6, 0.1, 0.6, 0.15])
    view.eligible[:, [0, 2]] = False
    assert committed(parse("EntropyBound(0.1)"), view) == [[1, 3]]
