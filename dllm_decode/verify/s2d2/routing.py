"""Routers of S2D2: which rows verify their draft in a round."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Generic, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from samplers.checks import (
    CheckedFields,
    NonNegative,
    Number,
    Probability,
    count_from,
    require_number,
)
from samplers.logits.float64 import widest
from samplers.logits.statistics import divided
from samplers.state import State
from samplers.view import View

Penalise = Literal["static", "dynamic"]
Estimate = Literal["entropy", "margin"]

# The least margin of a token that is expected to be accepted, from the authors' code.
_MARGIN = 0.05


class Router(CheckedFields, ABC, Generic[State]):
    """Decides from the logits of the draft which rows verify the draft.

    Its memory is a `State` of a row's whole answer: None, or tensors with the batch axis first.
    """

    def init(self, view: View) -> State:
        """Returns the state before the first round: zeros, which rows that join later get too."""
        return None  # type: ignore[return-value]  # a router with a state overrides this

    @abstractmethod
    def verifies(
        self, view: View, span: Bool[Tensor, "B W"], state: State
    ) -> tuple[Bool[Tensor, " B"], State]:
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
    estimate: Estimate = "entropy"
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


class Rewards(NamedTuple):
    """A row's rewards of both choices so far, and the row's last round.

    Attributes:
        counts: Rounds for each choice, 0: not to verify, 1: to verify, and each context.
        sums: Sums of their rewards.
        arm: Choice and context of the last round, as one index.
        masks: Masks of the block before the last round; 0: that round had nothing to decide.
        start: Where the block of the last round begins.
        opened: Masks of that block when it was opened.
    """

    counts: Int[Tensor, "B 2 C"]
    sums: Float[Tensor, "B 2 C"]
    arm: Int[Tensor, " B"]
    masks: Int[Tensor, " B"]
    start: Int[Tensor, " B"]
    opened: Int[Tensor, " B"]


@dataclass(frozen=True)
class UCB(Router[Rewards]):
    """Learns within each answer when verification commits more tokens a forward (a bandit).

    A round's reward is the masks that it filled, over its forwards: 2 if it verified, else 1. A
    round has one of `span_bins` x `progress_bins` x `entropy_bins` contexts: the length of the
    first run of masks between 1 and that of a block, the share of the block that was filled since
    it was opened, and the mean of entropy / ln V over the run, each cut into equal parts. With m
    the mean reward of n earlier rounds of this context and choice, the choice of the higher

        m + beta sqrt(ln t / n)

    is taken in the t-th round of the answer; verification if they are equal. A choice that was
    never tried in this context comes first.

    Source: as `S2D2`, policy "contextual_bandit_ucb". The defaults are those of the code, which
    names no published setting.
    Differs: Entropies are those at temperature 1, in the authors' code at that of the draws. The
    entropy over all masks of the block is not offered. Tokens that a sampler makes [MASK] again
    count against the reward.

    Attributes:
        beta: Weight, at least 0, of what was seldom tried.
        span_bins: Parts of the length of the run, at least 1.
        progress_bins: Parts of the share of the block, at least 1.
        entropy_bins: Parts of the entropy, at least 1.

    Raises:
        ValueError: If an attribute is outside its range.
    """

    beta: NonNegative = 1.0
    span_bins: Annotated[int, count_from(1)] = 2
    progress_bins: Annotated[int, count_from(1)] = 2
    entropy_bins: Annotated[int, count_from(1)] = 2

    def init(self, view: View) -> Rewards:
        """Returns counts and sums of 0."""
        zeros = torch.zeros_like(view.tokens[:, 0])
        num_contexts = self.span_bins * self.progress_bins * self.entropy_bins
        counts = zeros[:, None, None].repeat(1, 2, num_contexts)
        sums = counts.to(widest(zeros.device))
        return Rewards(counts, sums, zeros, zeros, zeros, zeros)

    def verifies(
        self, view: View, span: Bool[Tensor, "B W"], state: Rewards
    ) -> tuple[Bool[Tensor, " B"], Rewards]:
        masks = (view.eligible & view.masked).sum(-1)
        start = torch.zeros_like(masks) + view.start + view.block_start
        # Before a row's first round, no block was opened.
        is_same = (start == state.start) & (state.opened > 0)
        opened = torch.where(is_same, state.opened, masks)
        counts, sums = self._learned(state, torch.where(is_same, masks, 0))
        context = self._context(view, span, opened - masks)
        index = context[:, None, None].expand(-1, 2, 1)
        num_rounds, total = counts.gather(2, index).squeeze(-1), sums.gather(2, index).squeeze(-1)
        rounds = (counts.sum((1, 2)) + 1).to(sums)
        bonus = self.beta * (rounds.log()[:, None] / num_rounds).sqrt()
        score = torch.where(num_rounds > 0, total / num_rounds + bonus, torch.inf)
        chosen = (score[:, 1] >= score[:, 0]) & (masks > 0)
        arm = context + chosen * counts.shape[2]
        return chosen, Rewards(counts, sums, arm, masks, start, opened)

    def _learned(
        self, state: Rewards, masks_left: Int[Tensor, " B"]
    ) -> tuple[Int[Tensor, "B 2 C"], Float[Tensor, "B 2 C"]]:
        """Returns the counts and sums of rewards, with the last round's reward added."""
        counts, sums = state.counts.flatten(1), state.sums.flatten(1)
        decided = state.masks > 0
        num_forwards = 1 + (state.arm >= state.counts.shape[2]).long()
        reward = divided((state.masks - masks_left).to(sums), num_forwards) * decided
        arm = state.arm[:, None]
        counts = counts.scatter_add(1, arm, decided[:, None].long())
        sums = sums.scatter_add(1, arm, reward[:, None])
        return counts.view_as(state.counts), sums.view_as(state.sums)

    def _context(
        self, view: View, span: Bool[Tensor, "B W"], num_filled: Int[Tensor, " B"]
    ) -> Int[Tensor, " B"]:
        """Returns the number of each row's context."""
        length, width = span.sum(-1).clamp(min=1), view.block_width
        dtype, entropy = widest(span.device), torch.where(span, view.entropy, 0.0).sum(-1)
        context = torch.zeros_like(length)
        for share, number in (
            ((length - 1).to(dtype) / max(1, width - 1), self.span_bins),
            (num_filled.to(dtype) / width, self.progress_bins),
            (entropy / length / math.log(view.vocab_size), self.entropy_bins),
        ):
            context = context * number + (share * number).long().clamp(0, number - 1)
        return context
