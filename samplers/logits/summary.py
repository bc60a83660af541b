"""Logits of a window, and their statistics in as few passes over them as their use allows."""

from dataclasses import dataclass
from functools import cache, cached_property
from types import ModuleType

import torch
from jaxtyping import Float, Int
from torch import Tensor

from samplers.logits import statistics
from samplers.logits.statistics import Spread, TopK
from samplers.logits.truncation import Truncation


@dataclass(frozen=True, eq=False)
class Summary:
    """Logits that a forward computed, and their statistics, each computed once.

    Views that share a summary share its statistics. On CUDA a fused kernel computes all in one
    pass, if Triton is installed and can compile it; float64 is left to torch. Otherwise one pass
    computes the odds alone, or a longer one the odds and the entropy, whichever is read first.

    Attributes:
        model_logits: Logits of the model; each position has at least one that is finite.
        columns: Which columns of the window the logits predict, each at most once; `None`: all, in
            order.
        truncation: Makes of them the logits that samplers see; `None`: they are the same.
    """

    model_logits: Float[Tensor, "B N V"]
    columns: Int[Tensor, "B N"] | None = None
    truncation: Truncation | None = None

    def take(self, rows: Int[Tensor, " N"]) -> "Summary":
        """Returns the logits of some rows."""
        columns = None if self.columns is None else self.columns[rows]
        truncation = None if self.truncation is None else self.truncation.take(rows)
        return Summary(self.model_logits[rows], columns, truncation)

    @cached_property
    def logits(self) -> Float[Tensor, "B N V"]:
        """Logits that samplers see."""
        return self.model_logits if self.truncation is None else self.truncation(self.model_logits)

    @cached_property
    def top(self) -> TopK:
        """The two largest logits, among ties the lowest id first; a logit of -inf has any id."""
        return statistics.top_k(self.logits, 2) if self._fused is None else self._fused[0]

    def top_k(self, n: int) -> TopK:
        """Returns the n largest logits, descending, and their tokens."""
        if n > 2:
            return statistics.top_k(self.logits, n)
        return TopK(self.top.logits[..., :n], self.top.tokens[..., :n])

    @cached_property
    def most_likely(self) -> Int[Tensor, "B N"]:
        """The token of the largest logit; of ties the lowest id."""
        if self._knows("top"):
            return self.top.tokens[..., 0]
        return statistics.most_likely(self.logits)

    @property
    def odds_against(self) -> Float[Tensor, "B N"]:
        """(1 - p) / p of the most likely token; see `statistics.odds_against`."""
        return self._spread.odds_against if self._knows("_spread") else self._odds_against

    @cached_property
    def largest(self) -> Float[Tensor, "B N"]:
        """The largest logit."""
        if self._knows("top"):
            return self.top.logits[..., 0]
        return statistics.gather(self.logits, self.most_likely)

    @property
    def entropy(self) -> Float[Tensor, "B N"]:
        """Entropy in nats."""
        return self._spread.entropy

    @cached_property
    def _odds_against(self) -> Float[Tensor, "B N"]:
        return statistics.odds_against(self.logits, self.most_likely)

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
