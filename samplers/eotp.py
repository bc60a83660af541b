"""End of text by proposal (Learn2PD's EoTP)."""

from dataclasses import dataclass

from samplers.base import Decision
from samplers.checks import Probability
from samplers.logits.statistics import highest_one
from samplers.state import SamplerState
from samplers.view import Scope, View
from samplers.wrapper import Wrapper


@dataclass(frozen=True)
class EoTP(Wrapper[SamplerState]):
    """Commits an EOS as soon as the model proposes one anywhere in the rest of the answer.

    If a step commits no other EOS, it also commits the most confident of the proposed EOS, in this
    block or a later one, if its confidence is at least `threshold`. Decode with
    `truncate_at_eos=True`, so that everything after that EOS is over at once; masks before the EOS
    are still decoded, and a later step may find an earlier EOS.

    Source: Bao et al. 2025, "Learning to Parallel: Accelerating Diffusion Large Language Models via
    Learnable Parallel Decoding", https://arxiv.org/abs/2509.25188, end-of-text prediction; the
    rule is that of the authors' code, `generate_l2p_eot`.
    Differs: The authors' code has no threshold (here `threshold=0.0`), and cuts an answer short
    wherever the model proposes an EOS, even with next to no confidence. A threshold does not
    suffice on a block-causal model, which is sure of an EOS in blocks far ahead.

    Attributes:
        base: The sampler that decides otherwise; it must give `Fact.FINAL_TOKENS`.
        threshold: Least confidence of an EOS, a probability.

    Raises:
        ValueError: If the threshold is not a probability, or the base cannot be wrapped.
    """

    threshold: Probability = 0.9

    @property
    def scope(self) -> Scope:
        return "answer" if self.base.scope == "answer" else "suffix"

    def init(self, view: View) -> SamplerState:
        state: SamplerState = self.base_init(view)
        return state

    def step(self, view: View, state: SamplerState) -> tuple[Decision, SamplerState]:
        commit, tokens, state = self.base_step(view, state)
        proposed = view.is_eos(view.proposal) & view.masked & view.in_answer
        proposed = proposed & (view.confidence >= self.threshold)
        is_over = (view.is_eos(tokens) & commit).any(-1) | ~view.eligible.any(-1)
        end = highest_one(view.confidence, proposed & ~is_over[:, None])
        return Decision(commit | end, view.proposal.where(end, tokens)), state
