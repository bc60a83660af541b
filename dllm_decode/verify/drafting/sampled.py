"""Drafts that are drawn, not searched (speculative sampling)."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dllm_decode.verify.drafting.base import Drafting
from dllm_decode.verify.drafts import Draft, DraftStart
from samplers.checks import count_from
from samplers.logits.noise import mix
from samplers.logits.statistics import draw, most_likely, num_leading

# Separates the noise of drafts from the noise of the tokens that the target writes.
_DRAFTS = 1


@dataclass(frozen=True)
class Sampled(Drafting):
    """Draws each token from the mask predictor's distribution at its position.

    Token i of a draft is drawn from q_i = softmax(logits_i / temperature), independently of the
    others. The target, which would draw it from p_i, accepts it with probability
    min(1, p_i / q_i) and replaces it by a draw from max(0, p_i - q_i), normalised, so that the
    answer follows the target's own distribution. At temperature 0 the likeliest tokens are the
    draft. `verification="block"` judges the draft as a whole (`accept_block`): the distribution is
    the same, and in expectation never fewer tokens of a draft are accepted.

    A drawn token is accepted with probability sum_v min(p(v), q(v)); the likeliest token
    (`PathSearch(width=1, weight=1.0)`) with p of that token. Drawing is therefore better where both
    models are unsure and agree, and searching where they are sure.

    With `num_forwards` above 1, the sampler commits tokens to the draft between two forwards, as in
    `PathSearch`; other tokens are drawn from the last forward's logits, and q of a committed token
    is 1.

    Source: Leviathan, Kalman and Matias 2023, "Fast Inference from Transformers via Speculative
    Decoding", https://arxiv.org/abs/2211.17192, algorithm 1.
    Differs: q_i depends on the committed tokens, and on no token drafted before it.

    Attributes:
        verification: "token": each token by itself; "block": Sun et al. 2024.
        num_forwards: Forwards of the mask predictor that a draft is made from, at least 1.

    Raises:
        ValueError: If an attribute is outside its range.
    """

    verification: Literal["token", "block"] = "token"
    num_forwards: Annotated[int, count_from(1)] = 1

    is_drawn = True

    def draft(
        self, start: DraftStart, logits: Float[Tensor, "B K V"], lengths: Int[Tensor, " B"]
    ) -> Draft:
        if start.is_greedy:
            tokens = most_likely(logits)
        else:
            keys = start.position_keys(logits.shape[1])
            tokens = draw(logits, start.temperature, mix(keys ^ _DRAFTS))
        ends = start.canvas.is_eos(tokens)
        draft = Draft(tokens, torch.minimum(num_leading(~ends) + 1, lengths))
        if start.is_greedy:
            return draft
        assert isinstance(start.temperature, float)
        return draft._replace(
            logits=logits,
            temperature=start.temperature,
            judged_as_block=self.verification == "block",
        )
