"""Early commit of the whole answer by a smooth threshold (SchED), around any sampler."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from samplers.base import Decision
from samplers.checks import NonNegative, Share, count_from, non_negative, require_unset
from samplers.fixed_schedule import steps_before
from samplers.logits.float64 import in_float64, widest
from samplers.view import Scope, View
from samplers.wrapper import Wrapper

Fall = Literal["cosine", "linear", "exponential"]


class SchEDState(NamedTuple):
    """The steps taken in the block, the most likely tokens of the last one, and the base's state.

    Attributes:
        steps: Steps of each row in the block.
        most_likely: The most likely token of each position in the last step; 0 before the first.
        base: The state of the wrapped sampler.
    """

    steps: Int[Tensor, " B"]
    most_likely: Int[Tensor, "B W"]
    base: Any


@dataclass(frozen=True)
class SchED(Wrapper[SchEDState]):
    """Fills all masks of a row at once when its answer is stable and clear.

    Every mask of the row, in this block and after, takes its likeliest token if

    - the gap between the two highest logits, averaged over the masks of the answer, reaches a
      threshold that falls from `high` to `low`, and
    - at most the share `max_changed` of these positions has another likeliest token than in the
      step before.

    Otherwise the base decides. At progress t in [0, 1], the threshold is low + (high - low) w(t):

    | `fall` | w(t) |
    | --- | --- |
    | `"cosine"` | (1 + cos(pi t)) / 2 |
    | `"linear"` | 1 - t |
    | `"exponential"` | exp(-rate t), which ends above `low` |

    Progress is the share of the answer that is committed or, with `num_steps`, s / (num_steps - 1)
    in step s = 0, 1, ... of a fixed schedule.

    Source: Mohamed et al. 2025, "Fast-Decoding Diffusion Language Models via Progress-Aware
    Confidence Schedules", https://arxiv.org/abs/2512.02892, and the authors' code,
    github.com/amr-mohamedd/SchED, dream_sampling/sched.py. The defaults are those of the code;
    the authors also use `low=0` and, for "exponential", a `rate` of 2, 8 or 16.

    Differs: Each row is decided by itself; the authors' code averages over the batch. Progress by
    share of tokens is ours, for bases without a fixed number of steps. The second condition is in
    the code but not in the paper: `max_changed=1` is the paper's rule. With less than 1, no row
    fulfils it in the first step of a block; the authors' code has no blocks. Medians, quantiles,
    patience and a span for the answer are not offered.

    Attributes:
        base: The sampler that decides until then; it must give `Fact.FINAL_TOKENS`.
        fall: How the threshold falls.
        high: Threshold at progress 0, in logits, at least `low`.
        low: Threshold at progress 1, in logits, at least 0.
        rate: Rate of the exponential fall, at least 0.
        max_changed: Share of the masks, in [0, 1], whose likeliest token may have changed; 1: the
            tokens of the step before do not matter.
        num_steps: Steps of the whole decode, if fixed; 0: not known in advance.

    Raises:
        ValueError: If an attribute is outside its range or is not read, or the base cannot be
            wrapped.
    """

    fall: Fall = "cosine"
    high: Annotated[float, non_negative("a logit gap")] = 7.5
    low: Annotated[float, non_negative("a logit gap")] = 2.5
    rate: NonNegative = 4.0
    max_changed: Share = 0.0
    num_steps: Annotated[int, count_from(0, "steps")] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.high < self.low:
            raise ValueError(f"high must be at least low={self.low}, got {self.high}.")
        if self.fall != "exponential":
            require_unset(self, "rate", f"with fall={self.fall!r}")

    @property
    def scope(self) -> Scope:
        return "answer" if self.base.scope == "answer" else "suffix"

    def init(self, view: View) -> SchEDState:
        zeros = torch.zeros_like(view.tokens)
        return SchEDState(zeros[:, 0], zeros, self.base_init(view))

    def step(self, view: View, state: SchEDState) -> tuple[Decision, SchEDState]:
        steps, _, inner = state
        commit, tokens, inner = self.base_step(view, inner)
        top = view.top_k(2)
        most_likely = top.tokens[..., 0]
        decided = self._is_clear(view, top.logits, steps) & view.eligible.any(-1)
        decided &= self._is_stable(view, most_likely, state)
        fills = decided[:, None]
        return Decision(
            commit=torch.where(fills, view.masked, commit),
            tokens=torch.where(fills, most_likely, tokens),
        ), SchEDState(steps + 1, most_likely, inner)

    def _is_clear(
        self, view: View, top_logits: Float[Tensor, "B W 2"], steps: Int[Tensor, " B"]
    ) -> Bool[Tensor, " B"]:
        """Returns the rows whose mean gap between the two highest logits reaches the threshold."""
        top_logits = in_float64(top_logits)
        counted = (view.masked & view.in_answer).to(top_logits.device)
        gaps = (top_logits[..., 0] - top_logits[..., 1]).masked_fill(~counted, 0.0)
        threshold = self.low + (self.high - self.low) * self._weight(self._progress(view, steps))
        return (gaps.sum(-1) / counted.sum(-1) >= threshold.to(gaps)).to(steps.device)

    def _is_stable(
        self, view: View, most_likely: Int[Tensor, "B W"], state: SchEDState
    ) -> Bool[Tensor, " B"]:
        """Returns the rows in which the most likely token has changed at few positions."""
        counted = view.masked & view.in_answer
        changed = (most_likely != state.most_likely) | (state.steps == 0)[:, None]
        share = in_float64((changed & counted).sum(-1)) / in_float64(counted.sum(-1))
        return (share <= self.max_changed).to(view.masked.device)

    def _progress(self, view: View, steps: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
        if not self.num_steps:
            return view.progress
        step = (steps_before(view, self.num_steps) + steps).to(widest(steps.device))
        return step / (self.num_steps - 1) if self.num_steps > 1 else torch.ones_like(step)

    def _weight(self, progress: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        """Returns w, which is 1 at progress 0."""
        progress = progress.clamp(max=1.0)
        match self.fall:
            case "cosine":
                return (1.0 + (math.pi * progress).cos()) / 2
            case "linear":
                return 1.0 - progress
            case "exponential":
                return (-self.rate * progress).exp()
