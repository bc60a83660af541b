"""Accuracy of an exact model on list tasks: the curve that measured points are drawn against."""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache

from eval.metrics.metrics import TradeOff
from eval.oracle.joint import Joint, even_sizes
from eval.tasks import Example, ListTask, Task
from eval.tasks.lists import NUM_SYMBOLS, OUTPUTS, ListQuestion, valid_outputs

# Brackets around the list, and EOS: tokens that are certain from the start.
_NUM_CERTAIN = 3

# Greatest number of answers times sets of positions: a curve then takes some seconds.
_MOST_DRAWS = 4_000


def joint_of(task: Task, example: Example) -> Joint:
    """Returns the exact distribution over the right answers to an example, items only.

    Raises ValueError if the task's right answers are not known, or too many.
    """
    if not isinstance(task, ListTask):
        raise ValueError(
            f"The right answers to {task.name} are not known in closed form; "
            "choose a list task, such as 'lists/shuffle?n=4'."
        )
    return Joint.uniform(valid_outputs(example.meta["request"]))


def accuracy(request: ListQuestion, sizes: Sequence[int]) -> Fraction:
    """Returns the accuracy of an exact model at temperature 1 that draws items in random order.

    `sizes` are the numbers of items drawn in each step. Raises ValueError if there is no formula
    and too many answers to enumerate.
    """
    length = sum(sizes)
    before = [sum(sizes[:step]) for step in range(len(sizes))]
    if request.keyword == "shuffle":
        cells = math.prod((length - b) ** s for b, s in zip(before, sizes, strict=True))
        return Fraction(math.factorial(length), cells)
    if request.keyword == "replace_any":
        # Right if the first step that draws the new item draws it once.
        none_yet, total = Fraction(1), Fraction(0)
        for b, size in zip(before, sizes, strict=True):
            rest = length - b
            total += none_yet * Fraction(size, rest) * (1 - Fraction(1, rest)) ** (size - 1)
            none_yet *= (1 - Fraction(1, rest)) ** size
        return total
    if request.keyword == "agree":
        return Fraction(1, NUM_SYMBOLS ** (sizes[0] - 1))
    answers = valid_outputs(request)
    if len(answers) == 1 or max(sizes) == 1:
        return Fraction(1)
    if len(answers) * 2**length > _MOST_DRAWS:
        raise ValueError(f"{request.keyword} has {len(answers)} answers, too many to enumerate.")
    return _enumerated(request).random_order_accuracy(sizes)


@lru_cache(maxsize=1)
def _enumerated(request: ListQuestion) -> Joint:
    """Returns the distribution over the right answers, which caches its accuracies."""
    return Joint.uniform(valid_outputs(request))


def curve(task: Task, example: Example) -> list[TradeOff]:
    """Returns speed and accuracy of an exact model for every number of steps.

    The model draws the tokens of the answer, brackets and EOS included, in random order at
    temperature 1, equally many in each step. Empty for tasks without a known, single length, and
    for tasks without a formula whose answers are too many to enumerate.
    """
    if not isinstance(task, ListTask):
        return []
    request: ListQuestion = example.meta["request"]
    if task.n is None and request.keyword not in ("pair_sum", "city"):
        return []
    num_items = len(next(iter(OUTPUTS[request.keyword](request))))
    length = num_items + _NUM_CERTAIN
    points = []
    for num_steps in range(1, length + 1):
        shares = _item_sizes(even_sizes(length, num_steps), num_items)
        try:
            expected = sum((p * accuracy(request, counts) for p, counts in shares), Fraction(0))
        except ValueError:
            return []
        points.append(TradeOff(length / num_steps, float(expected)))
    return points


def _item_sizes(sizes: Sequence[int], num_items: int) -> Iterator[tuple[Fraction, list[int]]]:
    """Yields the possible counts of items in the steps, without zeros, and their probability."""
    if not sizes:
        yield Fraction(1), []
        return
    total = sum(sizes)
    for count in range(max(0, num_items - (total - sizes[0])), min(sizes[0], num_items) + 1):
        ways = math.comb(num_items, count) * math.comb(total - num_items, sizes[0] - count)
        share = Fraction(ways, math.comb(total, sizes[0]))
        for rest, tail in _item_sizes(sizes[1:], num_items - count):
            yield share * rest, [count, *tail] if count else tail
