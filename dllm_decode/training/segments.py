"""Masked diffusion that learns, of most states, only what a blockwise decoder asks for next."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from dllm_decode.models import MaskedTransformer
from dllm_decode.training.examples import Batch
from dllm_decode.training.masked_diffusion import MaskedDiffusion
from dllm_decode.training.masking import MaskSampler, stratified
from dllm_decode.training.objective import Objective


class Segments(NamedTuple):
    """States of answers.

    Attributes:
        masked: Positions that the model sees as masks.
        learned: Of those, the ones in the loss.
    """

    masked: Bool[Tensor, "B G"]
    learned: Bool[Tensor, "B G"]


@dataclass(frozen=True)
class SegmentSampler:
    """Draws states in which the answer is known up to a segment and masked behind it.

    A segment starts anywhere up to the answer's first EOS. Of its n positions k are masked, k
    uniform on 1, ..., n: any of them, or (with probability `ordered_share`) the last. Only masked
    positions of the segment are learned: in a long answer whose steps build on one another, those
    far behind it are as good as unknowable, and their gradients noise.

    With probability `anywhere_share` a state is one of LLaDA's instead: any k of all positions,
    all learned.

    Source: Arriola et al. 2025, "Block Diffusion", https://arxiv.org/abs/2503.09573, a loss that
    is a sum over blocks given what precedes them; Chen et al. 2025, "dParallel",
    https://arxiv.org/abs/2509.26488, masks behind the block that are not in the loss.

    Attributes:
        length: Of a segment, in tokens.
        ordered_share: Probability that a segment is masked from the right.
        anywhere_share: Probability of a state without a segment.
    """

    length: int = 32
    ordered_share: float = 0.5
    anywhere_share: float = 0.35

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"length must be at least 1, got {self.length}.")
        for name in ("ordered_share", "anywhere_share"):
            if not 0.0 <= vars(self)[name] <= 1.0:
                raise ValueError(f"{name} must be a probability in [0, 1], got {vars(self)[name]}.")

    def draw(
        self, answers: Int[Tensor, "B G"], eos_id: int, generator: torch.Generator
    ) -> Segments:
        """Draws the state of each answer; at least one position a row is learned."""
        num_rows, gen_length = answers.shape
        device = answers.device
        uniform = torch.rand(4, num_rows, generator=generator, device=device)
        scores = torch.rand(num_rows, gen_length, generator=generator, device=device)
        positions = torch.arange(gen_length, device=device)

        ends = (answers != eos_id).long().cumprod(-1).sum(-1).clamp(max=gen_length - 1)
        anywhere = uniform[0] < self.anywhere_share
        start = torch.where(anywhere, 0, (uniform[1] * (ends + 1)).long())
        length = torch.where(anywhere, gen_length, self.length).minimum(gen_length - start)
        current = (positions >= start[:, None]) & (positions < (start + length)[:, None])

        ordered = ~anywhere & (uniform[2] < self.ordered_share)
        scores = torch.where(ordered[:, None], 1.0 - positions / gen_length, scores)
        ranks = scores.masked_fill(~current, 2.0).argsort(-1).argsort(-1)
        num_masked = (1 + (stratified(uniform[3]) * length).long()).minimum(length)
        learned = ranks < num_masked[:, None]
        return Segments(learned | (positions >= (start + length)[:, None]), learned)


class SegmentDiffusion(Objective):
    """Mean cross-entropy over the learned positions of states that a `SegmentSampler` draws.

    Padding, positions and attention are those of `MaskedDiffusion`.

    Args:
        model: The model that is trained.
        segments: Draws the states.
    """

    model: MaskedTransformer

    def __init__(self, model: MaskedTransformer, segments: SegmentSampler) -> None:
        self.model = model
        self.eos_id = model.eos_ids[0]
        self._segments = segments
        self._plain = MaskedDiffusion(model, MaskSampler())

    def loss(self, batch: Batch, generator: torch.Generator) -> Float[Tensor, ""]:
        """Draws states of a batch and returns their mean loss, in nats."""
        answers = batch.tokens[:, batch.start :]
        masked, learned = self._segments.draw(answers, self.eos_id, generator)
        logits = self._plain.logits(batch, answers.masked_fill(masked, self.model.mask_id))
        return F.cross_entropy(logits[learned].float(), answers[learned])
