"""Which tokens of a draft are kept, and what is written where it ends."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dllm_decode.canvas import Canvas
from dllm_decode.session import Session
from dllm_decode.verify.drafting import Draft
from dllm_decode.verify.judging import first_masks
from samplers.noise import mix, uniform
from samplers.statistics import draw, gather, leading

# Tell these draws from each other and from those of drafts.
_VERDICTS, _REPLACEMENTS = 2, 3


class Verdict(NamedTuple):
    """What a target keeps of drafts.

    Attributes:
        tokens: What it writes: the accepted tokens and one more; what follows is arbitrary.
        accepted: Tokens of the draft that are kept.
    """

    tokens: Int[Tensor, "B K1"]
    accepted: Int[Tensor, " B"]


def accept(
    session: Session, canvas: Canvas, draft: Draft, logits: Float[Tensor, "B K1 V"]
) -> Verdict:
    """Decides on drafts such that every token written follows the target's law.

    Args:
        session: Has the temperature and the noise.
        canvas: The rows.
        draft: What was drafted; whether it was drawn decides on the rule.
        logits: The target's, at each position of the draft and at the one behind it.
    """
    first = first_masks(canvas)
    if draft.logs is None:
        return accept_matching(draft, session.choose(canvas, first, logits))
    keys = session.position_keys(canvas, first, logits.shape[1])
    logs = (logits.double() / session.temperature).log_softmax(-1)
    return accept_by_ratio(draft, logs, keys)


def accept_matching(draft: Draft, written: Int[Tensor, "B K1"]) -> Verdict:
    """Accepts the tokens that the target would have written, whatever the draft is.

    Args:
        draft: What was drafted.
        written: What the target writes at each position if all before it was accepted.
    """
    agree = (draft.tokens == written[:, :-1]) & _meant(draft)
    return Verdict(written, leading(agree))


def accept_by_ratio(
    draft: Draft, logs: Float[Tensor, "B K1 V"], keys: Int[Tensor, "B K1"]
) -> Verdict:
    """Accepts a token drawn from q with probability min(1, p / q), where p is the target's law.

    The first that is rejected is replaced by a draw from max(0, p - q), normalised; behind a draft
    that is accepted whole, the target's token is a draw from p.

    Source: Leviathan, Kalman and Matias 2023, "Fast Inference from Transformers via Speculative
    Decoding", https://arxiv.org/abs/2211.17192, algorithm 1.

    Args:
        draft: What was drawn, and from which q.
        logs: Logarithm of p.
        keys: Of the noise.
    """
    assert draft.logs is not None
    ratio = gather(logs[:, :-1], draft.tokens) - gather(draft.logs, draft.tokens)
    passes = uniform(mix(keys[:, :-1] ^ _VERDICTS)).log() < ratio
    accepted = leading(passes & _meant(draft))
    rows = torch.arange(len(accepted), device=accepted.device)
    p = logs[rows, accepted].exp()
    q = draft.logs[rows, accepted.clamp(max=draft.tokens.shape[1] - 1)].exp()
    rest = torch.where((accepted < draft.counts)[:, None], p - q, p).clamp(min=0.0)
    # Where p = q but for rounding, a token may be rejected and nothing be left.
    rest = torch.where((rest > 0.0).any(-1, keepdim=True), rest, p)
    place = accepted[:, None]
    drawn = draw(rest.log()[:, None], 1.0, mix(keys.gather(1, place) ^ _REPLACEMENTS))
    tokens = torch.cat([draft.tokens, drawn], -1).scatter(1, place, drawn)
    return Verdict(tokens, accepted)


def _meant(draft: Draft) -> Bool[Tensor, "B K"]:
    places = torch.arange(draft.tokens.shape[1], device=draft.counts.device)
    return places < draft.counts[:, None]
