"""Speed, quality and order of a decode, each defined once."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from eval.metrics.statistics import Number

# The authors' constants: the weight's steepness, and the loss of accuracy that ends a curve.
AUP_ALPHA = 3.0
AUP_TOLERANCE = 0.05


class TradeOff(NamedTuple):
    """One setting of a method: its tokens per cost (a ratio of sums), and accuracy in [0, 1]."""

    speed: float
    accuracy: float


def tokens_per(lengths: Sequence[Number], costs: Sequence[Number]) -> float:
    """Returns the sum of all answers' lengths over the sum of all their forwards, or seconds.

    Lengths are in tokens, up to and including the first EOS. A mean of ratios would let short
    answers decide. The seconds of an example are the time of its batch divided by the number of
    rows, without warm-up.
    """
    return math.fsum(lengths) / math.fsum(costs)


def pareto_front(points: Sequence[TradeOff]) -> list[int]:
    """Returns the indices of points that no other beats in speed and accuracy, by rising speed.

    The first of equal points is kept.
    """
    order = sorted(range(len(points)), key=lambda i: (-points[i].speed, -points[i].accuracy, i))
    front: list[int] = []
    for index in order:
        if not front or points[index].accuracy > points[front[-1]].accuracy:
            front.append(index)
    return front[::-1]


def speed_at_accuracy(points: Sequence[TradeOff], accuracy: float) -> float | None:
    """Returns the greatest tokens per forward at which a curve still reaches an accuracy.

    The curve joins the points by straight lines, by rising speed. None if the curve never does.

    Source: Kang et al. 2025, "ParallelBench", https://arxiv.org/abs/2510.04767, first version, `PB`
    with an index, which is the accuracy in per cent.
    """
    curve = sorted(points)
    best = [point.speed for point in curve if point.accuracy >= accuracy]
    for left, right in pairwise(curve):
        if (left.accuracy - accuracy) * (right.accuracy - accuracy) < 0:
            share = (left.accuracy - accuracy) / (left.accuracy - right.accuracy)
            best.append(left.speed + share * (right.speed - left.speed))
    return max(best, default=None)


def pb_score(points: Sequence[TradeOff], accuracy: float) -> float | None:
    """Returns the greatest speed of the settings that reach an accuracy; None if none does.

    Source: ParallelBench, second version (package `parallelbench`, 2026), `PB` with an index,
    which is the accuracy in per cent. The first version is `speed_at_accuracy`.
    """
    return max((point.speed for point in points if point.accuracy >= accuracy), default=None)


def aup(points: Sequence[TradeOff], best_accuracy: float) -> float:
    """Returns the accuracy under parallelism of a method's curve, on the authors' scale.

    With speeds r_1 < r_2 < ... and accuracies y_1, y_2, ... in per cent, and the weight
    W(y) = min(exp(-alpha (1 - y / y_max)), 1):
    AUP = r_1 y_1 + sum over i >= 2 of (r_i - r_(i-1)) (y_i W(y_i) + y_(i-1) W(y_(i-1))) / 2.
    Points with y below y_1 - 5 do not count; the authors' code refuses curves that end with one.

    Values are comparable only under the same `best_accuracy`, so print that accuracy next to
    them. Curves of two points score too high, because the straight line fills the gap.

    Source: Qian et al. 2025, "AUP: when Accuracy Meets Parallelism in Diffusion Language Models",
    https://hao-ai-lab.github.io/blogs/text-diffusion/.

    Args:
        points: Settings of one method, at least one, in any order.
        best_accuracy: The best accuracy of all compared methods on the task, y_max.
    """
    first, *others = sorted(points)
    # A point exactly at the limit counts, which rounding must not change.
    limit = first.accuracy - AUP_TOLERANCE - 1e-9
    curve = [first, *(point for point in others if point.accuracy >= limit)]
    weighted = [
        (speed, 100 * y * min(1.0, math.exp(-AUP_ALPHA * (1 - y / best_accuracy))))
        for speed, y in curve
    ]
    area = 100 * curve[0].speed * curve[0].accuracy
    for (left, low), (right, high) in pairwise(weighted):
        area += (right - left) * (low + high) / 2
    return area


def order_correlation(steps: Sequence[int]) -> float | None:
    """Returns Kendall's tau-b between positions and the steps of their last commits, left to right.

    1 is left to right, -1 right to left, near 0 no order. None if it is undefined: fewer than two
    positions, or all of them in one step.

    Source: Kendall 1945, "The treatment of ties in ranking problems",
    https://doi.org/10.1093/biomet/33.3.239.
    """
    values = np.asarray(steps)
    upper = np.triu_indices(len(values), k=1)
    signs = np.sign(values[upper[1]] - values[upper[0]])
    untied = int(np.count_nonzero(signs))
    if untied == 0:
        return None
    return float(signs.sum() / math.sqrt(untied * len(signs)))
