"""At which step each token of an answer was committed, and how likely it was."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad


class Commits(NamedTuple):
    """At which step each token of the answers was committed, and how likely it was.

    Attributes:
        steps: Step of the row, from 0, that committed the token; -1 where the token was given, or
            filled in after an EOS.
        logprobs: Log-probability of the token in the distribution that it was drawn from: the
            logits that the sampler was shown, at the row's temperature, after `top_p` and `top_k`.
            At temperature 0, where nothing is drawn, temperature 1 is used instead. NaN where
            `steps` is -1.
        model_logprobs: Log-probability of the token in the model's distribution: at temperature 1,
            without `top_p` and `top_k`. NaN where `steps` is -1.
    """

    steps: Int[Tensor, "B G"]
    logprobs: Float[Tensor, "B G"]
    model_logprobs: Float[Tensor, "B G"]

    @staticmethod
    def of(rows: Sequence["Commits | None"]) -> "Commits | None":
        """Returns the records of rows as one; `None` unless all rows have a record."""
        recorded = [row for row in rows if row is not None]
        if len(recorded) < len(rows):
            return None
        return Commits(*(torch.cat(parts) for parts in zip(*recorded, strict=True)))

    def padded(self, more: int) -> "Commits":
        """Returns the record with further positions, at which nothing was committed."""
        steps, *logprobs = self
        wide = [pad(values, (0, more), value=torch.nan) for values in logprobs]
        return Commits(pad(steps, (0, more), value=-1), *wide)
