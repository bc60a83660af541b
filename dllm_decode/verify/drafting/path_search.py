"""Causal-consistency path search (DiffuSpec): one draft out of many that a forward holds."""

from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dllm_decode.core.sending import send
from dllm_decode.verify.drafting.base import Drafting
from dllm_decode.verify.drafting.ngram import Proxy, Uniform
from dllm_decode.verify.drafts import Draft, DraftStart
from samplers.checks import NonNegative, Share, count_from, require_number
from samplers.logits.statistics import log_normaliser, top_k, widen


class _Beam(NamedTuple):
    """The best prefixes of each row.

    Attributes:
        tokens: The last tokens of the text, then the chosen ones; the rest is arbitrary.
        scores: Score of each prefix; -inf in unused places.
        counts: Number of chosen tokens.
        ended: True if the last chosen token ends the answer.
    """

    tokens: Int[Tensor, "B H T"]
    scores: Float[Tensor, "B H"]
    counts: Int[Tensor, "B H"]
    ended: Bool[Tensor, "B H"]


class _Candidates(NamedTuple):
    """Candidate tokens of each position, and the drafter's log-probability of each."""

    tokens: Int[Tensor, "B K C"]
    log_probs: Float[Tensor, "B K C"]


@dataclass(frozen=True)
class PathSearch(Drafting):
    """Finds, left to right, a sequence that both the drafter and a causal proxy find likely.

    A masked-diffusion model predicts each position for itself, so that the likeliest tokens of
    neighbouring positions need not make a sentence. At each position the fewest tokens whose
    probabilities reach `mass` are kept, `max_candidates` at most; a beam search maximises the sum
    of `weight` times the drafter's and `1 - weight` times the proxy's log-probability. A sequence
    with an EOS is finished. `PathSearch(width=1, weight=1.0)` takes the likeliest token everywhere.

    With `num_forwards` above 1, the mask predictor looks more than once. After each forward but the
    last, the sampler commits tokens to the draft, and the next forward sees them. The search fills
    in the positions that are still masked. Rows without masks take part in no further forward.

    Source: Li et al. 2025, "DiffuSpec: Unlocking Diffusion Language Models for Speculative
    Decoding", https://arxiv.org/abs/2510.02358, section on causal-consistency path search.
    Differs: The paper keeps EOS at every position (`eos="always"`), and sums favour early ends;
    by default EOS must be within `mass`, and finished sequences are compared by the mean. The paper
    does not say which tokens its S forwards a draft write; here the sampler decides.

    Attributes:
        width: Prefixes kept at each position.
        mass: Probability that the candidates of a position reach, in (0, 1].
        max_candidates: Candidates of a position at most.
        weight: Weight of the drafter, in [0, 1].
        proxy: Scores the order of tokens.
        eos: When EOS is a candidate: if EOS is likely ("within_mass"), or "always".
        length_power: Scores are divided by the length to this power at the end; 0: not at all.
        num_forwards: Forwards of the mask predictor that a draft is made from, at least 1.

    Raises:
        ValueError: If an attribute is outside its range.
    """

    width: Annotated[int, count_from(1)] = 3
    mass: float = 0.8
    max_candidates: Annotated[int, count_from(1)] = 15
    weight: Share = 0.5
    proxy: Proxy = field(default_factory=Uniform)
    eos: Literal["within_mass", "always"] = "within_mass"
    length_power: NonNegative = 1.0
    num_forwards: Annotated[int, count_from(1)] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < require_number("mass", self.mass) <= 1.0:
            raise ValueError(f"mass must be a probability in (0, 1], got {self.mass}.")

    def draft(
        self, start: DraftStart, logits: Float[Tensor, "B K V"], lengths: Int[Tensor, " B"]
    ) -> Draft:
        """Returns the best path of each row."""
        B, K, _ = logits.shape
        num_context = self.proxy.order - 1
        context = start.context(num_context)
        tokens = torch.cat([context, context.new_zeros(B, K)], -1)
        zeros = torch.zeros_like(lengths)[:, None].repeat(1, self.width)
        scores = torch.full(zeros.shape, -torch.inf, device=zeros.device)
        scores[:, 0] = 0.0
        beam = _Beam(tokens[:, None].repeat(1, self.width, 1), scores, zeros, zeros.bool())
        ends = send(start.canvas.eos_ids, logits.device)
        candidates = self._candidates(logits, ends)
        # The drafter's part of the score, for candidates only.
        excluded = candidates.log_probs == -torch.inf
        gains = (self.weight * candidates.log_probs).masked_fill(excluded, -torch.inf)
        is_over = torch.arange(K, device=lengths.device) >= lengths[:, None]
        steps = zip(candidates.tokens.unbind(1), gains.unbind(1), is_over.unbind(1), strict=True)
        for position, (choices, drafter_gains, row_is_over) in enumerate(steps):
            beam = self._extend(beam, position, choices, drafter_gains, row_is_over[:, None], ends)
        ranking = beam.scores / beam.counts.clamp(min=1) ** self.length_power
        rows = torch.arange(B, device=logits.device)
        best = ranking.argmax(-1)
        return Draft(beam.tokens[rows, best, num_context:], beam.counts[rows, best])

    def _extend(
        self,
        beam: _Beam,
        position: int,
        choices: Int[Tensor, "B C"],
        drafter_gains: Float[Tensor, "B C"],
        is_over: Bool[Tensor, "B 1"],
        ends: Int[Tensor, " E"],
    ) -> _Beam:
        """Extends every unfinished prefix by one token and keeps the best.

        Args:
            beam: The prefixes.
            position: Position of the token, from 0.
            choices: The candidates.
            drafter_gains: The drafter's part of the candidates' score.
            is_over: Rows whose drafts end before this position.
            ends: Tokens that end an answer.
        """
        B, H, _ = beam.tokens.shape
        num_choices, num_context = choices.shape[1], self.proxy.order - 1
        context = beam.tokens[:, :, position : position + num_context].reshape(B * H, num_context)
        repeated = choices.repeat_interleave(H, 0)
        causal = self.proxy.log_probability(context, repeated).view(B, H, num_choices)
        gains = drafter_gains[:, None] + (1.0 - self.weight) * causal.float()
        # A finished prefix is kept once, unchanged.
        finished = beam.ended | is_over
        gains = gains.masked_fill(finished[..., None], -torch.inf)
        gains[..., 0].masked_fill_(finished, 0.0)
        scores, chosen = (beam.scores[..., None] + gains).flatten(1).topk(H)
        parents, choice = chosen // num_choices, chosen % num_choices
        finished = finished.gather(1, parents)
        tokens = beam.tokens.gather(1, parents[..., None].expand_as(beam.tokens))
        added = choices.gather(1, choice)
        tokens[..., position + num_context] = added
        grown = ~finished
        ended = beam.ended.gather(1, parents) | (torch.isin(added, ends) & grown)
        return _Beam(tokens, scores, beam.counts.gather(1, parents) + grown, ended)

    def _candidates(self, logits: Float[Tensor, "B K V"], ends: Int[Tensor, " E"]) -> _Candidates:
        """Lists the likeliest tokens of each position up to the mass; other tokens are at -inf."""
        top = top_k(logits, min(self.max_candidates, logits.shape[-1]))
        tokens = top.tokens
        normaliser = log_normaliser(logits, tokens[..., 0])[..., None]
        log_probs = (top.logits - normaliser).float()
        before = log_probs.exp().cumsum(-1) - log_probs.exp()
        log_probs = log_probs.masked_fill(before >= self.mass, -torch.inf)
        if self.eos == "always":
            present = (tokens[..., None] == ends) & (log_probs > -torch.inf)[..., None]
            extra = (widen(logits[..., ends]) - normaliser).float()
            log_probs = torch.cat([log_probs, extra.masked_fill(present.any(-2), -torch.inf)], -1)
            tokens = torch.cat([tokens, ends.expand(*tokens.shape[:2], -1)], -1)
        return _Candidates(tokens, log_probs)
