"""Which mask patterns give the log-likelihood of an answer, and how."""

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from eval.metrics.statistics import mean, standard_error


class Pattern(NamedTuple):
    """A mask pattern over an answer, and what is read from the forward on it.

    Attributes:
        masked: Positions that are [MASK].
        scored: Those of them whose log-probabilities are added.
        weight: Multiplies their sum.
    """

    masked: Sequence[int]
    scored: Sequence[int]
    weight: float


class Estimate(NamedTuple):
    """A log-likelihood.

    Attributes:
        log_likelihood: In nats.
        standard_error: Of the log-likelihood, 0 where it is no estimate; draws are taken as
            independent, so systematic ones have less.
        is_greedy: Whether decoding one token at a time, left to right, gives this answer; `None`
            if the patterns do not tell.
    """

    log_likelihood: float
    standard_error: float
    is_greedy: bool | None


class Estimator(ABC):
    """Turns an answer of several tokens into mask patterns, and what they give into an estimate."""

    @abstractmethod
    def patterns(self, length: int, rng: random.Random) -> list[Pattern]:
        """Returns the patterns for an answer of some length."""

    @abstractmethod
    def combine(self, values: Sequence[float], hits: Sequence[bool]) -> Estimate:
        """Puts together what the patterns gave.

        Args:
            values: Each pattern's weighted sum of log-probabilities.
            hits: Whether each pattern's scored tokens are all most likely.
        """


@dataclass(frozen=True)
class LeftToRight(Estimator):
    """The chain rule from left to right, everything to the right masked; exact, L forwards.

    It is the log-probability of one decoding order. Where all conditionals come from one joint
    distribution all orders agree, and it is the joint's.
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
    log-probability, and so at most the logarithm of the mean probability.

    Numbers of masks are drawn systematically: one random offset, then equally spaced, with
    wrap-around. That lowers the variance and leaves each of them uniform.

    Source: Nie et al. 2025, "Large Language Diffusion Models", https://arxiv.org/abs/2502.09992,
    equation 6.

    Differs: [MASK] and vocabulary padding have probability 0, as in decoding. The offset is a real
    number, not a whole one.

    Attributes:
        num_samples: Patterns an answer, or an answer's block if the model is block-causal.
    """

    num_samples: int = 128

    def __post_init__(self) -> None:
        if self.num_samples < 1:
            raise ValueError(f"num_samples must be at least 1, got {self.num_samples}.")

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
