"""Guided diffusion: an autoregressive model decides how many proposals are kept."""

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Bool
from torch import Tensor

from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.state import State
from dllm_decode.engine.verifier import Look
from dllm_decode.engine.views import view_of
from dllm_decode.models.targets.causal import CausalTarget
from dllm_decode.verify.drafts import Draft, DraftStart
from dllm_decode.verify.target_verifier import (
    TargetForward,
    TargetVerifier,
    ask_drafter,
    ask_target,
    decision_of,
)
from samplers.checks import Probability, Share, count_from
from samplers.logits.statistics import gather, most_likely, num_larger, num_leading, probability


@dataclass(frozen=True)
class Guided(TargetVerifier):
    """Commits as many of the mask predictor's proposals as a causal model finds plausible.

    In each round the mask predictor proposes a token at each of the next `num_proposals` masked
    positions, and the target reads them in one forward. The longest prefix whose every token
    passes is committed, and at least the first token. A token passes if it is among the target's
    `top_k` likeliest, and its probability is at least `ratio` times the likeliest one's and above
    `threshold`. By default it must be the likeliest.

    Nothing is guaranteed about the text, which neither the mask predictor nor the target would
    write alone. Every token is the mask predictor's proposal given the tokens committed before; the
    target never writes. If no token ever passed, this would be the mask predictor's decoding from
    left to right, one token a forward; if all passed, all at once.

    The answer is written from left to right; blocks do not matter, and the sampler is not asked.
    A round ends with the first EOS.

    Source: Hu et al. 2025, "Accelerating Diffusion Language Model Inference via Efficient KV
    Caching and Guided Diffusion", https://arxiv.org/abs/2505.21467, guided diffusion; used there
    with FreeCache.
    Differs: If all proposals passed, the code goes on with the next ones of the same forward; here
    a new forward makes them. `ratio` follows the code, the paper may mean the mask predictor's own
    probability. The code's random acceptance is left out.

    Attributes:
        target: Reads proposals.
        num_proposals: Positions proposed in a round, at least 1.
        top_k: Rank, from 1, that a token may have at most.
        ratio: Least share, in [0, 1], of the likeliest token's probability.
        threshold: Probability, in [0, 1), that a token must exceed.

    Raises:
        ValueError: If an attribute is outside its range.
    """

    target: CausalTarget
    num_proposals: Annotated[int, count_from(1)] = 32
    top_k: Annotated[int, count_from(1)] = 1
    ratio: Share = 0.0
    threshold: Probability = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold == 1.0:
            raise ValueError("threshold must be below 1, which no probability exceeds, got 1.0.")

    def look(self, decoder: Decoder, state: State) -> tuple[State, Look]:
        past = state.verifier_state or self.target.start(len(state.rows))
        start = DraftStart.of(state)
        counts = state.canvas.unsettled.sum(-1).clamp(max=self.num_proposals)
        width = int(counts.max())
        state, window, logits = ask_drafter(decoder, state, self.target, width)
        view = view_of(decoder, state, window, logits)
        # After the row's end there may be tokens that the target does not know.
        proposed = torch.arange(width, device=counts.device) < counts[:, None]
        draft = Draft(view.proposal.masked_fill(~proposed, 0), counts)
        # The target judges the last proposal without reading it.
        to_read = draft._replace(counts=counts - 1)
        state, target_forward = ask_target(decoder, state, self.target, start, to_read, past)
        passed = self._passes(draft, target_forward) & proposed
        num_up_to_eos = num_leading(~state.canvas.is_eos(draft.tokens)) + 1
        accepted = torch.minimum(num_leading(passed), num_up_to_eos)
        state = state.with_drafts(drafted=counts, accepted=accepted)
        num_kept = accepted.clamp(min=1)
        seen = Look(view, window, decision=decision_of(window, draft.tokens, num_kept))
        return state._replace(verifier_state=target_forward.past(num_kept)), seen

    def _passes(self, draft: Draft, target_forward: TargetForward) -> Bool[Tensor, "B K"]:
        """Returns which tokens of the draft the target finds plausible."""
        logits = target_forward.logits
        best = most_likely(target_forward.logits)
        drafted = gather(logits, draft.tokens)
        largest = gather(logits, best)
        passes = (drafted - largest).exp() >= self.ratio
        if self.top_k == 1:
            passes &= drafted == largest
        else:
            passes &= num_larger(logits, drafted) < self.top_k
        if self.threshold > 0.0:
            return passes & (probability(logits, draft.tokens) > self.threshold)
        return passes & (drafted > -torch.inf)
