"""Closed-form accuracies of list operations decoded in one step.

The model is exact and every position is drawn at once, at temperature 1, from its own marginal.
Each value is the chance that the draw is a right answer.

Source: Kang et al. 2025, "ParallelBench", https://arxiv.org/abs/2510.04767, whose list operations
these are; the closed forms are our own, checked against enumeration.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import factorial

from eval.tasks.lists import NUM_SYMBOLS, Request


def replace_any_accuracy(n: int) -> Fraction:
    """Returns ((n-1)/n)^(n-1)."""
    return Fraction(n - 1, n) ** (n - 1)


def remove_any_accuracy(n: int) -> Fraction:
    """Returns (n-1)! 2^(n-1) / n^(n-1)."""
    return Fraction(factorial(n - 1) * 2 ** (n - 1), n ** (n - 1))


def insert_any_accuracy(n: int) -> Fraction:
    """Returns n! 2^n / (n+1)^(n+1)."""
    return Fraction(factorial(n) * 2**n, (n + 1) ** (n + 1))


def shuffle_accuracy(n: int) -> Fraction:
    """Returns n! / n^n."""
    return Fraction(factorial(n), n**n)


def agree_accuracy(n: int, num_symbols: int = NUM_SYMBOLS) -> Fraction:
    """Returns m^(1-n) for n copies of one of m symbols."""
    return Fraction(1, num_symbols ** (n - 1))


def pair_sum_accuracy(total: int) -> Fraction:
    """Returns 1/(N-1): the second number must match the first of N-1."""
    return Fraction(1, total - 1)


ONE_STEP: Mapping[str, Callable[[int], Fraction]] = {
    "replace_any": replace_any_accuracy,
    "remove_any": remove_any_accuracy,
    "insert_any": insert_any_accuracy,
    "shuffle": shuffle_accuracy,
    "agree": agree_accuracy,
    "pair_sum": pair_sum_accuracy,
    "city": lambda n: Fraction(1, 2),
}


def one_step_accuracy(request: Request) -> Fraction:
    """Returns the accuracy of drawing every position at once from its exact marginal.

    It is 1 where there is one right answer. The model is exact and draws at temperature 1.
    """
    if request.keyword not in ONE_STEP:
        return Fraction(1)
    length = len(request.items) if request.number is None else request.number
    return ONE_STEP[request.keyword](length)
