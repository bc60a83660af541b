"""Accepting tokens by entropy and drawing the others anew (DiffusionGemma)."""

from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from samplers.base import Decision, RevisingSampler
from samplers.checks import count_from, non_negative, positive
from samplers.facts import Fact
from samplers.logits.statistics import divided, ranks, sort_by_rank
from samplers.view import View


class AcceptAndRenoiseState(NamedTuple):
    """The memory of a block.

    Attributes:
        belief: Logits of the last step, divided by its temperature.
        history: The most likely tokens of the last steps, latest last; -1 before the first one.
        steps: Steps taken in this block.
    """

    belief: Float[Tensor, "B W V"]
    history: Int[Tensor, "B k W"]
    steps: Int[Tensor, " B"]


@dataclass(frozen=True)
class AcceptAndRenoise(RevisingSampler[AcceptAndRenoiseState]):
    """Draws all tokens of a block at every step, keeps the surest, and makes the others noise.

    For uniform-state models, whose blocks begin as random tokens. Step n of N, counted from 0, has
    the temperature T = `t_min` + (`t_max` - `t_min`) (N - n) / N, and everything that follows is
    computed from the logits divided by T. A token is drawn at each position. In ascending order of
    entropy a position is accepted if the entropies before it sum to at most `entropy_bound`. The
    block then has the drawn tokens where they are accepted, and uniformly random tokens elsewhere.
    No position stays accepted: each step decides about all of them. The model reads the divided
    logits in the next forward.

    A block is finished after N steps, or as soon as its most likely tokens equal those of each of
    the last `stability_threshold` steps and its mean entropy is below `confidence_threshold`. The
    answer is the most likely token of the last step at every position, accepted or not.

    Source: DiffusionGemma 2026, `EntropyBoundSampler` and the stopping criterion of transformers
    5.23 (`generation_diffusion_gemma.py`), whose defaults these are.
    Differs: A row's draws depend on its own seed alone, and a position's token is drawn in float64.
    Among equal entropies the leftmost comes first. A row whose block is finished goes on with its
    next block at once.

    Attributes:
        entropy_bound: Highest sum of entropies in nats, above 0, before an accepted position.
        num_steps: Steps of a block at most, N, at least 1.
        t_min: Temperature that the schedule approaches, at least 0.
        t_max: Temperature of the first step, above `t_min`.
        stability_threshold: Earlier steps, at least 0, with the same most likely tokens.
        confidence_threshold: Mean entropy in nats, above 0, below which a block may be finished.

    Raises:
        ValueError: If an attribute is outside its range.
    """

    entropy_bound: Annotated[float, positive("an entropy in nats")] = 0.1
    num_steps: Annotated[int, count_from(1, "steps")] = 48
    t_min: Annotated[float, non_negative("a temperature")] = 0.4
    t_max: Annotated[float, non_negative("a temperature")] = 0.8
    stability_threshold: Annotated[int, count_from(0, "steps")] = 1
    confidence_threshold: Annotated[float, positive("an entropy in nats")] = 0.005

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.t_min < self.t_max < float("inf"):
            raise ValueError(
                f"t_max must be a finite temperature above t_min={self.t_min}, got {self.t_max}: "
                "the rule neither decodes greedily nor at one temperature. "
                "AcceptAndRenoise(t_min=0.0, t_max=0.001) is nearly greedy."
            )

    @property
    def needs(self) -> frozenset[Fact]:
        return (super().needs - {Fact.HAS_MASK}) | {Fact.UNIFORM_STATE, Fact.EXACT_REPLAY}

    def max_steps(self, num_masks: int) -> int:
        return self.num_steps

    def init(self, view: View) -> AcceptAndRenoiseState:
        B, W = view.tokens.shape
        history = view.tokens.new_full((B, self.stability_threshold, W), -1)
        belief = torch.zeros_like(view.logits, dtype=view.dtype)
        return AcceptAndRenoiseState(belief, history, torch.zeros_like(view.tokens[:, 0]))

    def belief(self, state: AcceptAndRenoiseState) -> Float[Tensor, "B W V"]:
        return state.belief

    def step(
        self, view: View, state: AcceptAndRenoiseState
    ) -> tuple[Decision, AcceptAndRenoiseState]:
        step = state.steps + 1
        left = (self.num_steps + 1 - step).float() / self.num_steps
        temperature = self.t_min + (self.t_max - self.t_min) * left
        tempered = view.with_logits(divided(view.logits.to(view.dtype), temperature))
        tempered = replace(tempered.at_step(step), temperature=1.0)
        best = tempered.most_likely
        is_stable = (state.history == best[:, None]).all(-1).all(-1)
        mean = tempered.entropy.where(view.eligible, 0.0).sum(-1) / view.eligible.sum(-1)
        is_finished = is_stable & (mean < self.confidence_threshold) | (step == self.num_steps)
        noisy = torch.where(self.accepted(tempered), tempered.proposal, tempered.random_tokens())
        tokens = torch.where(is_finished[:, None], best, noisy)
        settle = view.eligible & is_finished[:, None]
        history = torch.cat([state.history, best[:, None]], 1)[:, 1:]
        next_state = AcceptAndRenoiseState(tempered.logits, history, step)
        return Decision(view.eligible, tokens, settle), next_state

    def accepted(self, view: View) -> Bool[Tensor, "B W"]:
        """Returns the positions whose drawn tokens stay, given the divided logits."""
        rank = ranks(-view.entropy, view.eligible)
        entropy = sort_by_rank(view.entropy, rank)
        fits = entropy.cumsum(-1) - entropy <= self.entropy_bound
        return fits.gather(-1, rank)
