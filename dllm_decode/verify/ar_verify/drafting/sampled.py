"""Drafts that are drawn, not searched (speculative sampling)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dllm_decode.canvas import Canvas
from dllm_decode.session import Session
from dllm_decode.verify.ar_verify.drafting.base import Draft, Drafting
from dllm_decode.verify.ar_verify.target_round import first_masks
from samplers.logits.noise import mix
from samplers.logits.statistics import draw, leading, most_likely

# Tells the noise of drafts from that of the tokens that the target writes.
_DRAFTS = 1


@dataclass(frozen=True)
class Sampled(Drafting):
    """Draws each token from what the mask predictor says about its position.

    Token i of a draft is drawn from q_i = softmax(logits_i / temperature), independently of the
    others. The target, which would draw it from p_i, accepts it with probability
    min(1, p_i / q_i) and replaces it by a draw from max(0, p_i - q_i), normalised, so the law of
    the answer is the target's own. At temperature 0 the likeliest tokens are the draft.

    A drawn token is accepted with probability sum_v min(p(v), q(v)); the likeliest token
    (`PathSearch(width=1, weight=1.0)`) with p of that token. So drawing pays where both models are
    unsure and agree, and searching where they are sure.

    Source: Leviathan, Kalman and Matias 2023, "Fast Inference from Transformers via Speculative
    Decoding", https://arxiv.org/abs/2211.17192, algorithm 1.
    Differs: q_i knows what is committed, and none of the tokens drafted before it.
    """

    def draft(
        self,
        session: Session,
        canvas: Canvas,
        logits: Float[Tensor, "B K V"],
        lengths: Int[Tensor, " B"],
    ) -> Draft:
        temperature = session.temperature
        if temperature == 0.0:
            tokens = most_likely(logits)
        else:
            keys = session.position_keys(canvas, first_masks(canvas), logits.shape[1])
            tokens = draw(logits, temperature, mix(keys ^ _DRAFTS))
        ends = canvas.is_eos(tokens)
        draft = Draft(tokens, torch.minimum(leading(~ends) + 1, lengths))
        if temperature == 0.0:
            return draft
        return draft._replace(logs=logits, temperature=temperature)
