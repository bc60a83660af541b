"""Ancestral sampling that makes tokens [MASK] again by chance (ReMDM)."""

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from samplers.base import Decision, RevisingSampler
from samplers.checks import Probability, count_from
from samplers.logits.float64 import widest
from samplers.logits.noise import mix, uniform
from samplers.view import View

Strategy = Literal["cap", "rescale", "confidence"]


class ReMDMState(NamedTuple):
    """How far each row is, and how sure the model was of each token.

    Attributes:
        steps: Steps of the block that are over, skipped ones included.
        confidence: Probability of each token when it was committed.
    """

    steps: Int[Tensor, " B"]
    confidence: Float[Tensor, "B W"]


class Chances(NamedTuple):
    """Probabilities that each step changes a position.

    Attributes:
        unmask: Probability that a mask gets a token.
        remask: Probability that a token becomes [MASK].
    """

    unmask: Float[Tensor, "... S"]
    remask: Float[Tensor, "... S"]


@dataclass(frozen=True)
class ReMDM(RevisingSampler[ReMDMState]):
    """Draws in each step which masks get a token, and which tokens become [MASK] again.

    Step k = 0, ..., S - 1 of a block leads from the share of tokens a = k / S to b = (k + 1) / S. A
    token becomes [MASK] with the probability r, and a mask gets its proposal with the probability
    (b - (1 - r) a) / (1 - a), so that about b of the block are tokens afterwards, for every r. The
    largest possible r is r_max = min(1, (1 - b) / a). The last step fills all masks and settles the
    block.

    | `strategy` | r |
    | --- | --- |
    | `"cap"` | min(eta, r_max) |
    | `"rescale"` | eta r_max |
    | `"confidence"` | r_max times a softmax of -c over the tokens of the block |

    c is the probability that a token had when it was committed. Steps in which nothing is drawn are
    skipped, because the model would see the same canvas again.

    Source: Wang et al. 2025, "Remasking Discrete Diffusion Models with Inference-Time Scaling",
    https://arxiv.org/abs/2503.00307, section 4, and the authors' code,
    github.com/kuleshov-group/remdm at f830d65, diffusion.py. The defaults of eta are theirs for
    "cap"; they use 0.015 for "rescale".
    Differs: Blocks are decoded in turn. Time ends at 0; in the authors' code it ends at 1e-5, and
    another forward fills the masks left. With "confidence" a mask is filled with the r of a mask,
    which is 0, as in the authors' code. Proposals follow `temperature`; the authors draw at
    1, with `top_p=0.9`. The strategy "loop" of their code is `ReMDMLoop`, without its drawn steps.

    Attributes:
        steps_per_block: Steps of a block, S, at least 1.
        strategy: How likely a token becomes [MASK], see the table.
        eta: Scale of r, a probability; "confidence" does not read it.

    Raises:
        ValueError: If an attribute is outside its range.
    """

    steps_per_block: Annotated[int, count_from(1)] = 32
    strategy: Strategy = "cap"
    eta: Probability = 0.008

    def max_steps(self, num_masks: int) -> int:
        return self.steps_per_block

    def init(self, view: View) -> ReMDMState:
        zeros = torch.zeros_like(view.tokens)
        return ReMDMState(zeros[:, 0], zeros.to(view.dtype))

    def step(self, view: View, state: ReMDMState) -> tuple[Decision, ReMDMState]:
        # A position that is [MASK] again is drawn anew, with other noise.
        view = view.at_step(state.steps)
        empty, filled = view.eligible & view.masked, view.eligible & ~view.masked
        numbers = torch.arange(self.steps_per_block, device=view.tokens.device)
        doubt = (-state.confidence).masked_fill(~filled, -torch.inf).softmax(-1).nan_to_num()
        unmask, remask = self.chances(doubt)
        noise = uniform(mix(view.position_keys[..., None] ^ mix(numbers)))
        drawn = noise < torch.where(empty[..., None], unmask, remask)
        # Under S2D2 the last step may be dropped, and is then taken again.
        first = state.steps.clamp(max=self.steps_per_block - 1)
        drawn = drawn & view.eligible[..., None] & (numbers >= first[:, None, None])

        # The first step in which a position changes; the last one, if there is none.
        changes = drawn.any(1)
        changes[:, -1] = True
        step = changes.long().argmax(-1)
        drawn = drawn.gather(-1, step[:, None, None].expand(*drawn.shape[:2], 1)).squeeze(-1)
        settle = view.eligible & (step == self.steps_per_block - 1)[:, None]
        decision = Decision(empty & drawn, view.proposal, settle, filled & drawn)
        confidence = torch.where(decision.commit, view.confidence, state.confidence)
        return decision, ReMDMState(step + 1, confidence)

    def chances(self, doubt: Float[Tensor, "B W"]) -> Chances:
        """Returns the probabilities of a change in each step.

        Args:
            doubt: Each token's share of the doubt, for the strategy "confidence".
        """
        numbers = torch.arange(self.steps_per_block + 1, device=doubt.device)
        shares = numbers.to(widest(doubt.device)) / self.steps_per_block
        before, after = shares[:-1], shares[1:]
        r_max = ((1.0 - after) / before.clamp(min=1e-9)).clamp(max=1.0)
        match self.strategy:
            case "cap":
                remask = r_max.clamp(max=self.eta)
            case "rescale":
                remask = self.eta * r_max
            case "confidence":
                return Chances((after - before) / (1.0 - before), doubt[..., None] * r_max)
        return Chances((after - (1.0 - remask) * before) / (1.0 - before), remask)
