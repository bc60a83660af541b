"""How long a run lasts, and the learning rate on the way."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from dllm_decode.training.checkpoints import Progress


class Budget(ABC):
    """What a run may use up."""

    @abstractmethod
    def spent(self, progress: Progress) -> float:
        """Returns the share that is used up, 1 at the end."""


@dataclass(frozen=True)
class Samples(Budget):
    """A number of rows; a run with this budget is a function of its settings.

    Attributes:
        num_samples: Rows, at least 1.
    """

    num_samples: int

    def __post_init__(self) -> None:
        if self.num_samples < 1:
            raise ValueError(f"num_samples must be at least 1, got {self.num_samples}.")

    def spent(self, progress: Progress) -> float:
        return progress.samples / self.num_samples


@dataclass(frozen=True)
class Minutes(Budget):
    """Wall-clock time, evaluations included.

    Attributes:
        minutes: Over all sessions of the run, above 0 and finite.
    """

    minutes: float

    def __post_init__(self) -> None:
        if not 0 < self.minutes < math.inf:
            raise ValueError(f"minutes must be finite and above 0, got {self.minutes}.")

    def spent(self, progress: Progress) -> float:
        return progress.elapsed_s / (60 * self.minutes)


@dataclass(frozen=True)
class LinearDecay:
    """Rises linearly to 1, then falls linearly to exactly 0 at the end.

    Attributes:
        warmup: Share of the run in which it rises.
    """

    warmup: float = 0.01

    def __post_init__(self) -> None:
        if not 0.0 <= self.warmup < 1.0:
            raise ValueError(f"warmup must be a share in [0, 1), got {self.warmup}.")

    def factor(self, spent: float) -> float:
        """Returns what the peak learning rate is multiplied with."""
        if spent < self.warmup:
            return spent / self.warmup
        return max(0.0, (1.0 - spent) / (1.0 - self.warmup))
