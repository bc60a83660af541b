"""Which answer positions are masked in training: the states that decoding passes through."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class MaskSampler:
    """Draws masks from a mixture of the states that decoders visit.

    *Anywhere*: k of the G answer positions, k uniform on 1, ..., G. *Block*: the blocks before a
    current one are clean, those behind it masked, and of its own n positions k are masked, k
    uniform on 1, ..., n: any k of them, or (with probability `ordered_share`) the last k. The
    current block is uniform among those up to the answer's first EOS, since decoding stops there.

    k is stratified over the batch: row i of B takes the quantile (i + u) / B, one u for all, so
    that the mean loss of a batch varies less.

    Source: Nie et al. 2025, "Large Language Diffusion Models", https://arxiv.org/abs/2502.09992,
    the masking of its SFT algorithm and its semi-autoregressive decoding; Sahoo et al. 2024,
    "Simple and Effective Masked Diffusion Language Models", https://arxiv.org/abs/2406.07524, the
    stratified noise levels.

    Differs: LLaDA masks each position independently with probability t; here exactly k are masked.
    Block states are not part of LLaDA's training.

    Attributes:
        block_length: Length of the blocks, in tokens.
        block_share: Probability of a block state.
        ordered_share: Probability that a block state is masked from the right.
    """

    block_length: int = 32
    block_share: float = 0.5
    ordered_share: float = 0.5

    def __post_init__(self) -> None:
        if self.block_length < 1:
            raise ValueError(f"block_length must be at least 1, got {self.block_length}.")
        for name in ("block_share", "ordered_share"):
            if not 0.0 <= vars(self)[name] <= 1.0:
                raise ValueError(f"{name} must be a probability in [0, 1], got {vars(self)[name]}.")

    def draw(
        self, answers: Int[Tensor, "B G"], eos_id: int, generator: torch.Generator
    ) -> Bool[Tensor, "B G"]:
        """Draws the masked positions of each answer, at least one a row."""
        num_rows, gen_length = answers.shape
        device = answers.device
        uniform = torch.rand(4, num_rows, generator=generator, device=device)
        scores = torch.rand(num_rows, gen_length, generator=generator, device=device)
        positions = torch.arange(gen_length, device=device)

        ends = (answers != eos_id).long().cumprod(-1).sum(-1).clamp(max=gen_length - 1)
        block = (uniform[0] * (ends // self.block_length + 1)).long()
        in_blocks = uniform[1] < self.block_share
        start = torch.where(in_blocks, block * self.block_length, 0)
        end = torch.where(in_blocks, start + self.block_length, gen_length).clamp(max=gen_length)

        ordered = in_blocks & (uniform[2] < self.ordered_share)
        scores = torch.where(ordered[:, None], 1.0 - positions / gen_length, scores)
        current = (positions >= start[:, None]) & (positions < end[:, None])
        scores = scores.masked_fill(~current, 2.0)
        ranks = scores.argsort(-1).argsort(-1)
        num_masked = 1 + (stratified(uniform[3]) * (end - start)).long()
        num_masked = torch.minimum(num_masked, end - start)
        return (ranks < num_masked[:, None]) | (positions >= end[:, None])


def stratified(uniform: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Returns a quantile of each of B equal parts of [0, 1), all shifted by the first number."""
    num_rows = len(uniform)
    return (torch.arange(num_rows, device=uniform.device) + uniform[0]) / num_rows
