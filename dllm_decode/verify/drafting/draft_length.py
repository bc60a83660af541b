"""How long a draft is (DiffuSpec's adaptive draft length)."""

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from samplers.checks import CheckedFields, count_from, require_number
from samplers.logits.float64 import widest


class DraftLengths(NamedTuple):
    """Length of each row's next draft, and the means from which it was computed.

    Attributes:
        length: Tokens of the next draft; of a tree, its depth at most.
        drafted: Moving mean of the drafts' lengths up to an EOS.
        accepted: Moving mean of the tokens accepted.
    """

    length: Int[Tensor, " B"]
    drafted: Float[Tensor, " B"]
    accepted: Float[Tensor, " B"]


@dataclass(frozen=True)
class DraftLength(CheckedFields):
    """Drafts as many tokens as lately came before an EOS, and more while all are accepted.

    After each round, with G and A moving means of the drafted and the accepted tokens, the length
    is G, plus `growth` if A reached G, within `shortest` and `longest`; rounded down.
    `DraftLength(8, 8)` is a fixed length.

    Source: Li et al. 2025, "DiffuSpec: Unlocking Diffusion Language Models for Speculative
    Decoding", https://arxiv.org/abs/2510.02358, section on adaptive draft length.
    Differs: The paper's means start at 0, so that the second draft is `shortest` and, between the
    bounds, every length reproduces itself; that is `start="zero"`. By default they start at
    `longest`.

    Attributes:
        shortest: Least tokens of a draft, at least 1.
        longest: Most tokens of a draft, and the tokens of the first draft.
        growth: Tokens added after full acceptance.
        momentum: Weight of the latest round in the means, in (0, 1].
        start: Where the means start, "longest" or "zero".

    Raises:
        ValueError: If an attribute is outside its range.
    """

    shortest: Annotated[int, count_from(1, "tokens")] = 20
    longest: Annotated[int, count_from(1, "tokens")] = 30
    growth: Annotated[int, count_from(0, "tokens")] = 10
    momentum: float = 0.5
    start: Literal["longest", "zero"] = "longest"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shortest > self.longest:
            raise ValueError(
                f"shortest must be between 1 and longest={self.longest} tokens, got "
                f"{self.shortest}."
            )
        if not 0.0 < require_number("momentum", self.momentum) <= 1.0:
            raise ValueError(f"momentum must be a weight in (0, 1], got {self.momentum}.")

    def first(self, like: Int[Tensor, " B"]) -> DraftLengths:
        """Returns the lengths before the first round, with the shape and device of `like`."""
        length = torch.full_like(like, self.longest)
        start = length if self.start == "longest" else torch.zeros_like(length)
        mean = start.to(widest(like.device))
        return DraftLengths(length, mean, mean)

    def after(
        self, lengths: DraftLengths, drafted: Int[Tensor, " B"], accepted: Int[Tensor, " B"]
    ) -> DraftLengths:
        """Returns the lengths after a round.

        Args:
            lengths: The lengths before the round.
            drafted: Tokens before the first EOS of the likeliest tokens.
            accepted: Tokens of the draft that were kept, without the correction.
        """
        means = [
            (1.0 - self.momentum) * mean + self.momentum * latest
            for mean, latest in ((lengths.drafted, drafted), (lengths.accepted, accepted))
        ]
        length = means[0] + self.growth * (means[1] >= means[0])
        return DraftLengths(length.floor().long().clamp(self.shortest, self.longest), *means)
