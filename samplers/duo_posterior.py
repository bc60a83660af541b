"""Ancestral sampling of a uniform-state model (Duo, LFM-Diffusion)."""

import math
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from samplers.base import Decision, RevisingSampler
from samplers.checks import Share, count_from, positive
from samplers.facts import Fact
from samplers.logits.statistics import divided
from samplers.view import View

# Share of noise at the end of the schedule.
_EPSILON = 0.001
# Alpha that the last step assumes for the block, in place of the schedule's last.
_READ_OUT = math.exp(-0.7)


class DuoPosteriorState(NamedTuple):
    """The memory of a block.

    Attributes:
        belief: Logits of the last step, divided by its temperature.
        steps: Steps taken in this block.
    """

    belief: Float[Tensor, "B W V"]
    steps: Int[Tensor, " B"]


@dataclass(frozen=True)
class DuoPosterior(RevisingSampler[DuoPosteriorState]):
    """Draws each position of a block from its posterior, given the token there and the logits.

    For uniform-state models. A clean token is kept with the probability alpha, and is uniformly
    random otherwise; alpha grows from 0.001 to 0.999 over the steps. A step draws every position
    anew: it keeps the token that is there, takes one that the model believes in, or stays random,
    see `posterior`. One more step, with alpha 1, draws the answer.

    Source: Sahoo et al. 2025, "The Diffusion Duality", https://arxiv.org/abs/2506.10892, as in
    LFM-Diffusion's `sampler.py`, whose settings these are; its other `num_steps` are 8 and 4.
    Differs: Written from a description of that file, and compared with numbers computed from the
    description. A position's noise is keyed. `top_k` and `top_p` are not offered. LFM's network
    reads the noise level too, which the engine does not pass.

    Attributes:
        num_steps: Steps of a block, at least 1; one more follows.
        rho: Exponent of the times, above 0; 1 spaces them evenly.
        kappa: Share of the posterior, in [0, 1]; the rest forgets the token that is there.
        t_min: Temperature of the last steps, above 0.
        t_max: Temperature of the first step, at least `t_min`.

    Raises:
        ValueError: If an attribute is outside its range.
    """

    num_steps: Annotated[int, count_from(1, "steps")] = 32
    rho: Annotated[float, positive()] = 0.3
    kappa: Share = 1.0
    t_min: Annotated[float, positive("a temperature")] = 0.4
    t_max: Annotated[float, positive("a temperature")] = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.t_min > self.t_max:
            raise ValueError(f"t_max must be at least t_min={self.t_min}, got {self.t_max}.")

    @property
    def needs(self) -> frozenset[Fact]:
        return (super().needs - {Fact.HAS_MASK}) | {Fact.UNIFORM_STATE, Fact.EXACT_REPLAY}

    def max_steps(self, num_masks: int) -> int:
        return self.num_steps + 1

    def alphas(self, device: torch.device | str = "cpu") -> Float[Tensor, " _"]:
        """Returns alpha at the start of each step, and after the last one, in float32."""
        left = torch.linspace(1, 0, self.num_steps + 1, device=device)
        return 1.0 - (1.0 - _EPSILON) * (_EPSILON + (1.0 - _EPSILON) * left**self.rho)

    def init(self, view: View) -> DuoPosteriorState:
        belief = torch.zeros_like(view.logits, dtype=view.dtype)
        return DuoPosteriorState(belief, torch.zeros_like(view.tokens[:, 0]))

    def belief(self, state: DuoPosteriorState) -> Float[Tensor, "B W V"]:
        return state.belief

    def step(self, view: View, state: DuoPosteriorState) -> tuple[Decision, DuoPosteriorState]:
        is_last, alphas = state.steps == self.num_steps, self.alphas(view.tokens.device)
        alpha_t = torch.where(is_last, _READ_OUT, alphas[state.steps])
        next_alpha = alphas[(state.steps + 1).clamp(max=self.num_steps)]
        alpha_s = torch.where(is_last, 1.0, next_alpha)
        share = (state.steps / max(1, self.num_steps - 1)).clamp(max=1.0)
        temperature = self.t_max + (self.t_min - self.t_max) * share
        logits = divided(view.logits.to(view.dtype), temperature)
        probabilities = posterior(logits.softmax(-1), view.tokens, alpha_t, alpha_s, self.kappa)
        posterior_view = view.with_logits(probabilities.log()).at_step(state.steps + 1)
        posterior_view = replace(posterior_view, temperature=1.0)
        settle = view.eligible & is_last[:, None]
        next_state = DuoPosteriorState(logits, state.steps + 1)
        return Decision(view.eligible, posterior_view.proposal, settle), next_state


def posterior(
    belief: Float[Tensor, "B W V"],
    tokens: Int[Tensor, "B W"],
    alpha_t: Float[Tensor, " B"],
    alpha_s: Float[Tensor, " B"],
    kappa: float = 1.0,
) -> Float[Tensor, "B W V"]:
    """Returns the distribution of the tokens at a time s, given those at an earlier step's time t.

    It is Bayes' rule with the belief b in place of the clean token: (K d + (1 - K) / V) m_s / m_t,
    where K is alpha_t / alpha_s, d is 1 for the token that is there and 0 for others, m_s is
    alpha_s b + (1 - alpha_s) / V for each token, and m_t the same, at t, for the token there.

    Args:
        belief: Probabilities that the model gives to each token.
        tokens: The tokens at t.
        alpha_t: Share of signal at t, in each row.
        alpha_s: Share of signal at s, at least as large.
        kappa: Share of the posterior; the rest is m_s.
    """
    at_t, at_s = alpha_t[:, None, None], alpha_s[:, None, None]
    vocab_size, index = belief.shape[-1], tokens[..., None]
    marginal = at_s * belief + (1.0 - at_s) / vocab_size
    ratio = at_t / at_s
    evidence = at_t * belief.gather(-1, index) + (1.0 - at_t) / vocab_size
    uniform = ((1.0 - ratio) / vocab_size).expand_as(belief)
    bayes = uniform.scatter_add(-1, index, ratio.expand_as(evidence)) * marginal / evidence
    return kappa * bayes + (1.0 - kappa) * marginal
