"""The statistics of one window of logits, in as few passes over them as their use allows."""

from dataclasses import dataclass
from functools import cache, cached_property
from types import ModuleType

import torch
from jaxtyping import Float, Int
from torch import Tensor

from samplers.logits import statistics
from samplers.logits.statistics import Spread, TopK


@dataclass(frozen=True, eq=False)
class Summary:
    """What samplers ask about the logits of each position, found on first use and kept.

    On CUDA a fused kernel finds all of it in one pass, if Triton is installed and can compile it;
    float64 is left to torch. Otherwise the normaliser alone costs a pass, and a longer one finds
    the entropy with it; which is made depends on what is asked for first.

    Attributes:
        logits: At least one of each position is finite.
    """

    logits: Float[Tensor, "B W V"]

    @cached_property
    def top(self) -> TopK:
        """The two largest logits, of ties the lowest id first; a logit of -inf has any id."""
        return statistics.top_k(self.logits, 2) if self._fused is None else self._fused[0]

    def top_k(self, n: int) -> TopK:
        """Returns the n largest logits, descending, and their tokens."""
        if n > 2:
            return statistics.top_k(self.logits, n)
        return TopK(self.top.logits[..., :n], self.top.tokens[..., :n])

    @property
    def most_likely(self) -> Int[Tensor, "B W"]:
        """The token of the largest logit; of ties the lowest id."""
        return self.top.tokens[..., 0] if self._knows("top") else self._most_likely

    @property
    def log_normaliser(self) -> Float[Tensor, "B W"]:
        """Logarithm of the sum of the exponentials of the logits."""
        return self._spread.log_normaliser if self._knows("_spread") else self._log_normaliser

    @property
    def entropy(self) -> Float[Tensor, "B W"]:
        """Entropy in nats."""
        return self._spread.entropy

    @cached_property
    def _most_likely(self) -> Int[Tensor, "B W"]:
        return statistics.most_likely(self.logits)

    @cached_property
    def _log_normaliser(self) -> Float[Tensor, "B W"]:
        return statistics.log_normaliser(self.logits, self.most_likely)

    @cached_property
    def _spread(self) -> Spread:
        if self._fused is not None:
            return self._fused[1]
        return statistics.spread(self.logits, self.most_likely)

    def _knows(self, name: str) -> bool:
        return self._fused is not None or name in vars(self)

    @cached_property
    def _fused(self) -> tuple[TopK, Spread] | None:
        kernel = _kernel(self.logits.device, self.logits.dtype)
        if kernel is None:
            return None
        found: tuple[TopK, Spread] = kernel.summarise(self.logits)
        return found


@cache
def _kernel(device: torch.device, dtype: torch.dtype) -> ModuleType | None:
    """Returns the module of the kernel if it can serve such logits."""
    if device.type != "cuda" or dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return None
    # Only torch for CUDA on Linux brings Triton along.
    try:
        from samplers.logits import kernel as fused
    except ImportError:
        return None
    return fused if fused.runs_on(device, dtype) else None
