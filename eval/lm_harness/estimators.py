"""Mask patterns that give the log-likelihood of an answer."""

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from eval.metrics.statistics import mean, standard_error
from samplers.checks import require_count


class Pattern(NamedTuple):
    """Masked positions of an answer, the scored ones among them, and a factor of their score."""

    masked: Sequence[int]
    scored: Sequence[int]
    weight: float


class Estimate(NamedTuple):
    """A log-likelihood in nats.

    `standard_error` is 0 if it is exact, and too large for systematic draws. `is_greedy` says
    whether decoding from left to right, one token at a time, gives this answer; None if that is not
    known.
    """

    log_likelihood: float
    standard_error: float
    is_greedy: bool | None


class Estimator(ABC):
    """Turns an answer of several tokens into mask patterns, and their scores into an estimate."""

    @abstractmethod
    def patterns(self, length: int, rng: random.Random) -> list[Pattern]:
        """Returns the patterns for an answer of some length."""

    @abstractmethod
    def combine(self, values: Sequence[float], hits: Sequence[bool]) -> Estimate:
        """Returns the estimate.

        Args:
            values: Each pattern's weighted sum of log-probabilities.
            hits: True for each pattern whose scored tokens are all most likely.
        """


@dataclass(frozen=True)
class LeftToRight(Estimator):
    """The chain rule from left to right, everything to the right masked; exact, L forwards.

    It is the log-probability of one decoding order, and of all orders if the conditionals come from
    one joint distribution.
    """

    def patterns(self, length: int, rng: random.Random) -> list[Pattern]:
        return [Pattern(range(i, length), (i,), 1.0) for i in range(length)]

    def combine(self, values: Sequence[float], hits: Sequence[bool]) -> Estimate:
        return Estimate(sum(values), 0.0, all(hits))


@dataclass(frozen=True)
class MonteCarlo(Estimator):
    """The evidence bound of masked diffusion, estimated from random mask patterns.

    E over l uniform on 1..L, and over sets M of l positions, of (L / l) times the sum over M of
    log p(token | tokens outside M). That is the mean over all decoding orders of the chain rule's
    log-probability, and so at most the logarithm of the mean probability. Numbers of masks are
    equally spaced from a random offset, with wrap-around, which lowers the variance.

    Source: Nie et al. 2025, "Large Language Diffusion Models", https://arxiv.org/abs/2502.09992,
    equation 6.

    Differs: [MASK] and vocabulary padding have probability 0. The offset is a real number.

    Attributes:
        num_samples: Patterns an answer, or an answer's block if the model is block-causal.
    """

    num_samples: int = 128

    def __post_init__(self) -> None:
        require_count("num_samples", self.num_samples, 1)

    def patterns(self, length: int, rng: random.Random) -> list[Pattern]:
        offset = rng.random()
        found = []
        for index in range(self.num_samples):
            share = (offset + index / self.num_samples) % 1.0
            # The greatest share below 1, times the length, may be rounded up to the length.
            count = min(int(share * length), length - 1) + 1
            masked = sorted(rng.sample(range(length), count))
            found.append(Pattern(masked, masked, length / count))
        return found

    def combine(self, values: Sequence[float], hits: Sequence[bool]) -> Estimate:
        return Estimate(mean(values), standard_error(values), None)
