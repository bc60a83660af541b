"""Routers of S2D2: which rows verify their draft in a round."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Generic, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from samplers.checks import (
    CheckedFields,
    NonNegative,
    Number,
    Probability,
    count_from,
    require_number,
)
from samplers.state import SamplerState
from samplers.view import View

Penalise = Literal["static", "dynamic"]
AcceptanceEstimate = Literal["entropy", "margin"]

# The least margin of a token that is expected to be accepted, from the authors' code.
_MARGIN = 0.05


class Router(CheckedFields, ABC, Generic[SamplerState]):
    """Decides from the logits of the draft which rows verify the draft.

    The state of a router lasts for a row's whole answer: None, or tensors, batch axis first.
    """

    def init(self, view: View) -> SamplerState:
        """Returns the state before the first round: zeros, which rows that join later get too."""
        return None  # type: ignore[return-value]  # a router with a state overrides this

    @abstractmethod
    def verifies(
        self, view: View, span: Bool[Tensor, "B W"], state: SamplerState
    ) -> tuple[Bool[Tensor, " B"], SamplerState]:
        """Returns the rows whose draft is verified; each row is decided without the others.

        Args:
            view: The sampler's view of the rows.
            span: The first run of masks of each row's block; empty in a full block.
            state: The state after the last round.
        """


@dataclass(frozen=True)
class MinimumSpan(Router[None]):
    """Verifies if the first run of masks is long enough.

    Source: as `S2D2`, policy "mask_span_length".

    Attributes:
        length: Least number of masks, at least 1. Fast-dLLM v2 with blocks of 32: 8.
    """

    length: Annotated[int, count_from(1, "masks")] = 8

    def verifies(
        self, view: View, span: Bool[Tensor, "B W"], state: None
    ) -> tuple[Bool[Tensor, " B"], None]:
        return span.sum(-1) >= self.length, None


@dataclass(frozen=True)
class ScoreThreshold(Router[Bool[Tensor, " B"]]):
    """Verifies if the tokens that verification is expected to accept are worth its forward.

    With a_i the estimated probability that the i-th token of the first run of masks is accepted,

        score = a_1 + a_1 a_2 + a_1 a_2 a_3 + ... - penalty x n

    where n is 1 ("static"), or the number of the block's masks whose confidence exceeds
    `confidence` ("dynamic"): about as many as the sampler would commit without verification.

    Source: as `S2D2`, policies "score_threshold" and, with `off`, "score_hysteresis". Published
    settings: the default for SDAR with blocks of 4, `penalty=0` with blocks of 16;
    `ScoreThreshold(-5, penalty=4)` and `ScoreThreshold(0, penalty=4)` for LLaDA 2.1 with thresholds
    of 0.95 and 0.7; `ScoreThreshold(1, -5, penalise="dynamic", confidence=0.9)` for Fast-dLLM v2.
    Differs: Estimates are made at temperature 1, in the authors' code at that of the draws.

    Attributes:
        on: Least score.
        off: If given, a row that verified in its last round goes on doing so down to this score;
            the others begin above `on`, as in the authors' code (paper: at `on`). Below `on`.
        penalise: The number n.
        penalty: Tokens, at least 0, that must be expected for each of the n.
        estimate: "entropy": a = exp(-entropy / ln V), V the size of the vocabulary. "margin": 1 if
            the likeliest token leads the second by more than 0.05, else 0.
        confidence: Probability, in [0, 1], see above; usually the sampler's threshold.

    Raises:
        ValueError: If an attribute is outside its range.
    """

    on: Number = 0.0
    off: float | None = None
    penalise: Penalise = "static"
    penalty: NonNegative = 1.0
    estimate: AcceptanceEstimate = "entropy"
    confidence: Probability = 0.85

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.off is not None and require_number("off", self.off) >= self.on:
            raise ValueError(f"off must be below on={self.on}, got {self.off}.")

    def init(self, view: View) -> Bool[Tensor, " B"]:
        """Returns the rows that verified in their last round."""
        return torch.zeros_like(view.masked[:, 0])

    def verifies(
        self, view: View, span: Bool[Tensor, "B W"], state: Bool[Tensor, " B"]
    ) -> tuple[Bool[Tensor, " B"], Bool[Tensor, " B"]]:
        score = self._expected(view, span)
        if self.penalise == "static":
            score = score - self.penalty
        else:
            confident = view.eligible & view.masked & (view.confidence > self.confidence)
            score = score - self.penalty * confident.sum(-1)
        score = torch.where(span.any(-1), score, -torch.inf)
        if self.off is None:
            chosen = score >= self.on
        else:
            chosen = torch.where(state, score >= self.off, score > self.on)
        return chosen, chosen

    def _expected(self, view: View, span: Bool[Tensor, "B W"]) -> Float[Tensor, " B"]:
        """Returns the number of tokens that verification is expected to accept."""
        if self.estimate == "entropy":
            accepted = (-view.entropy / math.log(view.vocab_size)).exp()
        else:
            accepted = (view.margin > _MARGIN).to(view.dtype)
        # Columns before the span multiply by 1, columns after it are not summed.
        return (torch.where(span, accepted, 1.0).cumprod(-1) * span).sum(-1)
