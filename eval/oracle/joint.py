"""Distributions over answers in exact rationals: the cost of drawing several positions at once."""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TypeAlias

Symbols: TypeAlias = tuple[int, ...]
Partition: TypeAlias = Sequence[Sequence[int]]
"""Positions committed together, in the order of the steps."""


@dataclass(frozen=True)
class Joint:
    """A distribution over answers of one length, in exact rationals.

    Attributes:
        answers: Probability of each possible answer, which is positive; they sum to 1. Symbols are
            whole numbers from 0.
    """

    answers: Mapping[Symbols, Fraction]

    @staticmethod
    def uniform(answers: Iterable[Sequence[Hashable]]) -> "Joint":
        """Returns the distribution under which the given answers are equally likely.

        Symbols are numbered in the order in which they first appear.
        """
        numbers: dict[Hashable, int] = {}
        listed = {
            tuple(numbers.setdefault(symbol, len(numbers)) for symbol in answer): None
            for answer in answers
        }
        return Joint({answer: Fraction(1, len(listed)) for answer in listed})

    @property
    def length(self) -> int:
        """Positions of an answer."""
        return len(next(iter(self.answers)))

    @cached_property
    def num_symbols(self) -> int:
        """One more than the greatest symbol."""
        return 1 + max(max(answer) for answer in self.answers)

    @property
    def total_correlation(self) -> float:
        """The sum of the positions' entropies less the entropy of the answer, in bits."""
        return self.lost_bits([range(self.length)])

    def lost_bits(self, partition: Partition) -> float:
        """Returns the bits that are lost by drawing the positions of a step independently.

        Summed over the steps, the expected total correlation of the step's positions given the
        earlier ones. The accuracy is at least 2 to the power of minus this sum, and equal for
        symmetric tasks. The partition covers all positions.
        """
        return _lost(self.answers, list(partition))

    def accuracy(self, partition: Partition) -> Fraction:
        """Returns the exact probability that draws at temperature 1 end in a possible answer."""
        return _accuracy(self.answers, list(partition))


def left_to_right(length: int, tokens_per_step: int) -> list[range]:
    """Returns the partition that commits `tokens_per_step` positions a step, left to right."""
    starts = range(0, length, tokens_per_step)
    return [range(start, min(start + tokens_per_step, length)) for start in starts]


def _marginals(
    answers: Mapping[Symbols, Fraction], positions: Iterable[int]
) -> dict[int, dict[int, Fraction]]:
    """Returns the distribution of the symbol at each position; weights need not sum to 1."""
    total = sum(answers.values(), Fraction(0))
    marginals: dict[int, dict[int, Fraction]] = {}
    for position in positions:
        marginal = marginals[position] = defaultdict(Fraction)
        for answer, weight in answers.items():
            marginal[answer[position]] += weight / total
    return marginals


def _split(
    answers: Mapping[Symbols, Fraction], positions: Sequence[int]
) -> dict[Symbols, dict[Symbols, Fraction]]:
    """Groups answers by their symbols at the positions."""
    groups: dict[Symbols, dict[Symbols, Fraction]] = defaultdict(dict)
    for answer, weight in answers.items():
        groups[tuple(answer[position] for position in positions)][answer] = weight
    return groups


def _accuracy(answers: Mapping[Symbols, Fraction], partition: list[Sequence[int]]) -> Fraction:
    """Returns the probability that draws, step by step, end in one of the answers."""
    if not partition:
        return Fraction(1)
    draws = _draws(answers, partition[0])
    return sum((p * _accuracy(group, partition[1:]) for p, group in draws), Fraction(0))


def _draws(
    answers: Mapping[Symbols, Fraction], positions: Sequence[int]
) -> Iterator[tuple[Fraction, dict[Symbols, Fraction]]]:
    """Yields the probability of each draw that may end in an answer, and the answers it leaves."""
    marginals = _marginals(answers, positions)
    for symbols, group in _split(answers, positions).items():
        pairs = zip(positions, symbols, strict=True)
        yield math.prod((marginals[at][symbol] for at, symbol in pairs), start=Fraction(1)), group


def _lost(answers: Mapping[Symbols, Fraction], partition: list[Sequence[int]]) -> float:
    if not partition:
        return 0.0
    total = sum(answers.values(), Fraction(0))
    groups = _split(answers, partition[0])
    shares = [sum(group.values(), Fraction(0)) / total for group in groups.values()]
    marginals = _marginals(answers, partition[0])
    here = math.fsum(_entropy(m.values()) for m in marginals.values()) - _entropy(shares)
    later = [_lost(group, partition[1:]) for group in groups.values()]
    return here + math.fsum(float(share) * loss for share, loss in zip(shares, later, strict=True))


def _entropy(probabilities: Iterable[Fraction]) -> float:
    """Returns the entropy in bits."""
    return -math.fsum(float(p) * math.log2(p) for p in probabilities)
