"""Decides which tokens of a draft are kept, and which token is written after them."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dllm_decode.verify.drafts import Draft, DraftStart
from samplers.logits.float64 import widest
from samplers.logits.noise import mix, uniform
from samplers.logits.statistics import (
    divided,
    draw,
    gather,
    log_probability,
    logprob_temperature,
    num_leading,
)
from samplers.view import View

# Keys that separate the noise of these draws from each other and from the noise of drafts.
_VERDICTS, _REPLACEMENTS = 2, 3


class Verdict(NamedTuple):
    """The tokens that a target accepts of each draft, and the token that the target adds.

    Attributes:
        tokens: The accepted tokens and one more of the target, which replaces the first rejected
            token, or is the *bonus* token after a draft that is accepted whole; the rest is
            arbitrary.
        accepted: Number of accepted tokens.
        places: Index in the draft of each accepted token of a tree; the rest is arbitrary.
            `None`: the accepted tokens are the draft's first.
    """

    tokens: Int[Tensor, "B K1"]
    accepted: Int[Tensor, " B"]
    places: Int[Tensor, "B D"] | None = None


def accept(start: DraftStart, draft: Draft, target_logits: Float[Tensor, "B K1 V"]) -> Verdict:
    """Returns a verdict on drafts such that every token written follows the target's distribution.

    Args:
        start: Where the drafts start.
        draft: A path that was chosen, a path that was drawn, or a tree; each has its rule.
        target_logits: Logits of the target after the committed text, then after each token of the
            longest draft.
    """
    draft = draft.shortened(target_logits.shape[1] - 1)
    if draft.parents is not None:
        rows = torch.arange(len(start.first_unsettled), device=target_logits.device)

        def choose(places: Int[Tensor, " B"], depth: int) -> Int[Tensor, " B"]:
            here = target_logits[rows, places + 1][:, None]
            return start.proposals(here, depth).squeeze(1)

        return accept_tree(draft, choose)
    if draft.logits is not None:
        keys = start.position_keys(target_logits.shape[1])
        assert isinstance(start.temperature, float)
        rule = accept_block if draft.judged_as_block else accept_by_ratio
        return rule(draft, target_logits, keys, temperature=start.temperature)
    written = torch.zeros(target_logits.shape[:2], dtype=torch.long, device=target_logits.device)
    for span in _spans(target_logits.shape[1]):
        written[:, span] = start.proposals(target_logits[:, span], span.start)
        # The tokens up to the first that the target would not have written.
        accepted = num_leading((draft.tokens == written[:, :-1]) & _is_drafted(draft))
        if (accepted < span.stop).all():
            break
    return Verdict(written, accepted)


def accept_tree(
    draft: Draft, choose: Callable[[Int[Tensor, " B"], int], Int[Tensor, " B"]]
) -> Verdict:
    """Accepts the path from the root of a tree whose every token is the one the target writes.

    Every token written is the target's own choice, so that it follows the target's distribution for
    any tree. No rule can accept more often, because a token that follows this distribution is one
    of the children with the probability that the target gives to the children.

    Source: Ringel and Romano 2026, "Accelerating Speculative Decoding with Block Diffusion Draft
    Trees" (DDTree), https://arxiv.org/abs/2604.12989, verification.

    Args:
        draft: A tree.
        choose: Returns the target's token after the token at an index of the draft (-1: after the
            committed text), given also the new token's depth. Called once per depth for all rows.
    """
    assert draft.parents is not None
    is_drafted = _is_drafted(draft)
    node = torch.full_like(draft.counts, -1)
    walking = torch.ones_like(node, dtype=torch.bool)
    accepted = torch.zeros_like(node)
    tokens, places = [], []
    # No walk is longer than a tree has tokens.
    for depth in range(draft.tokens.shape[1] + 1):
        written = choose(node, depth)
        tokens.append(written)
        child = (draft.parents == node[:, None]) & (draft.tokens == written[:, None]) & is_drafted
        walking = walking & child.any(-1)
        accepted += walking
        if not walking.any():
            break
        node = torch.where(walking, child.long().argmax(-1), node)
        places.append(node)
    taken = torch.stack(places, -1) if places else node[:, None].clamp(min=0)
    return Verdict(torch.stack(tokens, -1), accepted, taken)


def accept_by_ratio(
    draft: Draft,
    target_logits: Float[Tensor, "B K1 V"],
    keys: Int[Tensor, "B K1"],
    *,
    temperature: float | None = None,
) -> Verdict:
    """Accepts a token drawn from q with probability min(1, p / q); p is the target's distribution.

    The first rejected token is replaced by a draw from max(0, p - q), normalised. After a draft
    that is accepted whole, the target's token is a draw from p.

    Source: Leviathan, Kalman and Matias 2023, "Fast Inference from Transformers via Speculative
    Decoding", https://arxiv.org/abs/2211.17192, algorithm 1.

    Args:
        draft: The drawn tokens, and q.
        target_logits: Logits of p, after the committed text and after each token of the draft.
        keys: Noise keys of the positions.
        temperature: As in `Draft`, for `target_logits`.
    """
    assert draft.logits is not None
    limits = uniform(mix(keys[:, :-1] ^ _VERDICTS)).log()
    passes = torch.zeros_like(limits, dtype=torch.bool)
    is_drafted = _is_drafted(draft)
    for span in _spans(passes.shape[1]):
        drafted = draft.tokens[:, span]
        ratio = _log_probability(target_logits[:, span], drafted, temperature)
        ratio = ratio - _log_probability(draft.logits[:, span], drafted, draft.temperature)
        passes[:, span] = (limits[:, span] < ratio) & is_drafted[:, span]
        if not passes[:, : span.stop].all(-1).any():
            break
    shares = torch.ones_like(limits[:, 0])
    return _verdict_of(
        draft, target_logits, keys, num_leading(passes), shares=shares, temperature=temperature
    )


def accept_by_ratio_without_bonus(
    draft: Draft, log_probs: Float[Tensor, "B K V"], keys: Int[Tensor, "B K"]
) -> Verdict:
    """Accepts as `accept_by_ratio`; the bonus token of a draft that is accepted whole is arbitrary.

    Args:
        draft: The drawn tokens, and q.
        log_probs: Logarithm of p at each token of the draft.
        keys: Noise keys of these positions.
    """
    log_probs, keys = (torch.cat([values, values[:, -1:]], 1) for values in (log_probs, keys))
    return accept_by_ratio(draft, log_probs, keys)


def accept_block(
    draft: Draft,
    target_logits: Float[Tensor, "B K1 V"],
    keys: Int[Tensor, "B K1"],
    *,
    temperature: float | None = None,
) -> Verdict:
    """Accepts the longest prefix of a drawn draft that passes its test.

    With w = 1 before the draft and w = min(1, w p / q) after each token, where p is the target's
    distribution and q that of the draft, the prefix that ends there passes with probability
    s / (s + 1 - w), where s is the sum of max(0, w p - q) over the next token's vocabulary; the
    whole draft passes with probability w. After the longest that passes, the token is a draw from
    max(0, w p - q), normalised; after the whole draft, from p. A token that `accept_by_ratio`
    rejects may be accepted if a later test passes. In expectation never fewer are accepted than
    by `accept_by_ratio`.

    Source: Sun et al. 2024, "Block Verification Accelerates Speculative Decoding",
    https://arxiv.org/abs/2403.10444, algorithm 2; equations 3 and 4.
    Differs: A draft may end early with an EOS, after which p and q are certain of the same
    token.

    Args:
        draft: As in `accept_by_ratio`.
        target_logits: As in `accept_by_ratio`.
        keys: As in `accept_by_ratio`.
        temperature: As in `accept_by_ratio`.
    """
    assert draft.logits is not None
    limits = uniform(mix(keys[:, :-1] ^ _VERDICTS))
    accepted = torch.zeros_like(draft.counts)
    shares = torch.ones_like(limits[:, 0])
    share = shares
    for place in range(draft.tokens.shape[1]):
        drafted = draft.tokens[:, place : place + 1]
        ratio = _log_probability(target_logits[:, place : place + 1], drafted, temperature)
        ratio = ratio - _log_probability(
            draft.logits[:, place : place + 1], drafted, draft.temperature
        )
        share = (share * ratio.squeeze(1).exp()).clamp(max=1.0)
        chance = share
        if place + 1 < draft.tokens.shape[1]:
            p = _probabilities(target_logits[:, place + 1], temperature)
            q = _probabilities(draft.logits[:, place + 1], draft.temperature)
            mass = (share[:, None] * p - q).clamp_(min=0.0).sum(-1)
            # 0 / 0 where p = q, and nothing is rejected: a later test decides.
            chance = torch.where(place + 1 < draft.counts, mass / (mass + 1.0 - share), share)
        passes = (limits[:, place] < chance) & (place < draft.counts)
        accepted = torch.where(passes, place + 1, accepted)
        shares = torch.where(passes, share, shares)
    return _verdict_of(draft, target_logits, keys, accepted, shares=shares, temperature=temperature)


def tempered_log_probs(view: View, logits: Float[Tensor, "N K V"]) -> Float[Tensor, "N K V"]:
    """Returns log-probabilities at the rows' temperature, at 1 for greedy rows."""
    temperature = logprob_temperature(view.temperature)
    return divided(logits.to(widest(logits.device)), temperature).log_softmax(-1)


def _verdict_of(
    draft: Draft,
    target_logits: Float[Tensor, "B K1 V"],
    keys: Int[Tensor, "B K1"],
    accepted: Int[Tensor, " B"],
    *,
    shares: Float[Tensor, " B"],
    temperature: float | None,
) -> Verdict:
    """Returns the verdict, with a draw after the accepted tokens.

    The draw is from p if all tokens are accepted, otherwise from max(0, share p - q), normalised.
    """
    assert draft.logits is not None
    rows = torch.arange(len(accepted), device=accepted.device)
    p = _probabilities(target_logits[rows, accepted], temperature)
    q = _probabilities(
        draft.logits[rows, accepted.clamp(max=draft.logits.shape[1] - 1)], draft.temperature
    )
    residual = torch.where((accepted < draft.counts)[:, None], shares[:, None] * p - q, p)
    residual = residual.clamp_(min=0.0)
    # If p and q differ by rounding alone, a token may be rejected although p - q leaves nothing.
    residual = torch.where((residual > 0.0).any(-1, keepdim=True), residual, p)
    place = accepted[:, None]
    drawn = draw(residual.log()[:, None], 1.0, mix(keys.gather(1, place) ^ _REPLACEMENTS))
    tokens = torch.cat([draft.tokens, drawn], -1).scatter(1, place, drawn)
    return Verdict(tokens, accepted)


def _spans(num_positions: int) -> Iterator[slice]:
    """Splits positions into spans, each twice as long as the one before.

    Callers stop once every row has a rejection, so that most of a bad draft costs nothing.
    """
    start, length = 0, 4
    while start < num_positions:
        yield slice(start, min(start + length, num_positions))
        start, length = start + length, 2 * length


def _log_probability(
    logits: Float[Tensor, "B K V"], tokens: Int[Tensor, "B K"], temperature: float | None
) -> Float[Tensor, "B K"]:
    if temperature is None:
        return gather(logits, tokens)
    return log_probability(logits, tokens, temperature)


def _probabilities(logits: Float[Tensor, "B V"], temperature: float | None) -> Float[Tensor, "B V"]:
    if temperature is None:
        return logits.exp()
    return (logits.to(widest(logits.device)) / temperature).softmax(-1)


def _is_drafted(draft: Draft) -> Bool[Tensor, "B K"]:
    places = torch.arange(draft.tokens.shape[1], device=draft.counts.device)
    return places < draft.counts[:, None]
