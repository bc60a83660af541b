"""Logits of a window, and their statistics in as few passes over them as their use allows."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from samplers.logits import statistics
from samplers.logits.statistics import Spread, TopK
from samplers.logits.truncation import Truncation


@dataclass(frozen=True, eq=False)
class Summary:
    """Logits that a forward computed, and their statistics, each computed once.

    Views that share a summary share its statistics. If the odds are read first, a pass computes
    them alone; if the entropy is, a longer pass computes both. Compiled code computes all at once.

    Attributes:
        model_logits: Logits of the model; each position has at least one that is finite.
        offsets: Which columns of the window the logits predict, each at most once; `None`: all, in
            order.
        truncation: Turns the logits into those that samplers see; `None`: samplers see the model's.
        compiled: True: the statistics run through `torch.compile`.
    """

    model_logits: Float[Tensor, "B N V"]
    offsets: Int[Tensor, "B N"] | None = None
    truncation: Truncation | None = None
    compiled: bool = False

    def take(self, rows: Int[Tensor, " N"]) -> "Summary":
        """Returns the logits of some rows."""
        offsets = None if self.offsets is None else self.offsets[rows]
        truncation = None if self.truncation is None else self.truncation.take(rows)
        return Summary(self.model_logits[rows], offsets, truncation, self.compiled)

    def raised(self, tokens: Int[Tensor, "B W R"], values: Float[Tensor, "B W R"]) -> "Summary":
        """Returns a copy of the logits, raised at a few tokens; see `View.with_logit_bias`."""
        if self.offsets is not None:
            index = self.offsets[..., None].expand(-1, -1, tokens.shape[2])
            tokens, values = tokens.gather(1, index), values.gather(1, index)
        logits = statistics.widen(self.logits)
        logits = logits.scatter_add(-1, tokens.clamp(min=0), values.to(logits.dtype))
        return Summary(logits, self.offsets, compiled=self.compiled)

    @cached_property
    def logits(self) -> Float[Tensor, "B N V"]:
        """Logits that samplers see."""
        return self.model_logits if self.truncation is None else self.truncation(self.model_logits)

    @cached_property
    def top(self) -> TopK:
        """The two largest logits, among ties the lowest id first; a logit of -inf has any id."""
        return self._top_and_spread[0] if self.compiled else statistics.top_k(self.logits, 2)

    def top_k(self, n: int) -> TopK:
        """Returns the n largest logits, descending, and their tokens."""
        if n > 2:
            return statistics.top_k(self.logits, n)
        return TopK(self.top.logits[..., :n], self.top.tokens[..., :n])

    @cached_property
    def most_likely(self) -> Int[Tensor, "B N"]:
        """The token of the largest logit; among ties the lowest id."""
        if self.compiled or "top" in vars(self):
            return self.top.tokens[..., 0]
        return statistics.most_likely(self.logits)

    @cached_property
    def odds_against(self) -> Float[Tensor, "B N"]:
        """(1 - p) / p of the most likely token; see `statistics.odds_against`."""
        if self.compiled or "_spread" in vars(self):
            return self._spread.odds_against
        return statistics.odds_against(self.logits, self.most_likely)

    @cached_property
    def largest(self) -> Float[Tensor, "B N"]:
        """The largest logit."""
        if self.compiled or "top" in vars(self):
            return self.top.logits[..., 0]
        return statistics.gather(self.logits, self.most_likely)

    @property
    def entropy(self) -> Float[Tensor, "B N"]:
        """Entropy in nats."""
        return self._spread.entropy

    @cached_property
    def _spread(self) -> Spread:
        if self.compiled:
            return self._top_and_spread[1]
        return statistics.spread(self.logits, self.most_likely)

    @cached_property
    def _top_and_spread(self) -> tuple[TopK, Spread]:
        size = self.logits.shape[:2]
        # Rows and columns as one axis, so that few shapes are compiled.
        top, spread = _compiled_top_and_spread()(self.logits.flatten(0, 1))
        return (
            TopK(*(part.unflatten(0, size) for part in top)),
            Spread(*(part.unflatten(0, size) for part in spread)),
        )


@cache
def _compiled_top_and_spread() -> Callable[[Float[Tensor, "n V"]], tuple[TopK, Spread]]:
    return torch.compile(statistics.top_and_spread, fullgraph=True, dynamic=True)
