"""The losses of a causal model and of a masked-diffusion model that answer the same prompts."""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from dllm_decode.models.predictors.masked_transformer import MaskedTransformer
from dllm_decode.training.examples import Batch, Objective
from samplers.checks import CheckedFields, Probability, count_from

IGNORED = -100


@dataclass(eq=False)
class Causal(Objective[Batch]):
    """Mean cross-entropy of the answer's tokens and of the EOS that ends it.

    Prompts are not learned. Rows are moved to the left, so that there is no padding to attend to:
    position 0 is the first token of the prompt.
    """

    model: PreTrainedModel
    eos_id: int

    def loss(self, batch: Batch, generator: torch.Generator) -> Float[Tensor, ""]:
        """Returns the mean loss in nats; nothing about it is random."""
        tokens, labels = _align_left(batch, self.eos_id)
        logits: Tensor = self.model(input_ids=tokens, use_cache=False).logits
        return F.cross_entropy(logits.float().transpose(1, 2), labels, ignore_index=IGNORED)


def _align_left(batch: Batch, eos_id: int) -> tuple[Int[Tensor, "B L"], Int[Tensor, "B L"]]:
    """Returns tokens without left padding, and labels: the next token, or `IGNORED`."""
    length = batch.tokens.shape[1]
    columns = torch.arange(length, device=batch.tokens.device)
    source = columns + batch.pads[:, None]
    tokens = batch.tokens.gather(1, source.clamp(max=length - 1))
    tokens = tokens.masked_fill(source >= length, eos_id)
    following = tokens.roll(-1, dims=1)
    in_answer = (source + 1 >= batch.start) & (source + 1 < length)
    # Only the first EOS is learned: a position that holds an EOS has no label.
    ended = in_answer & (source >= batch.start) & (tokens == eos_id)
    return tokens, following.masked_fill(~in_answer | ended, IGNORED)


@dataclass(frozen=True)
class MaskSampler(CheckedFields):
    """Draws masks from a mixture of the states that decoders visit.

    *Anywhere*: k of the G answer positions, k uniform on 1, ..., G. *Block*: the blocks before a
    current block are clean, the blocks after it masked, and of its n positions k are masked, k
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

    block_length: Annotated[int, count_from(1)] = 32
    block_share: Probability = 0.5
    ordered_share: Probability = 0.5

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
        # A quantile of each of B equal parts of [0, 1), all shifted by one number.
        quantiles = (torch.arange(num_rows, device=device) + uniform[3, 0]) / num_rows
        num_masked = (1 + (quantiles * (end - start)).long()).minimum(end - start)
        return (ranks < num_masked[:, None]) | (positions >= end[:, None])


@dataclass(eq=False)
class MaskedDiffusion(Objective[Batch]):
    """Mean cross-entropy over the masked answer positions.

    The EOS tokens after an answer are masked and learned like any other token, so that training
    shows no position after the prompt that decoding masks. Logits that predict the next column are
    shifted.

    Source: Nie et al. 2025, "Large Language Diffusion Models", https://arxiv.org/abs/2502.09992,
    SFT, where answers are padded with EOS and the padding is part of the answer.

    Differs: Every masked position weighs the same; LLaDA weighs those of a row by 1 / t. States
    that hide little thereby count less in the loss than in the likelihood bound.
    """

    model: MaskedTransformer
    masks: MaskSampler

    def loss(self, batch: Batch, generator: torch.Generator) -> Float[Tensor, ""]:
        """Masks a batch and returns its mean loss, in nats."""
        masked = self.masks.draw(batch.answers, self.model.eos_ids[0], generator)
        logits = self.logits(batch, batch.answers.masked_fill(masked, self.model.mask_id))
        losses = F.cross_entropy(logits.float().transpose(1, 2), batch.answers, reduction="none")
        return (losses * masked).sum() / masked.sum()

    def logits(self, batch: Batch, answers: Int[Tensor, "B G"]) -> Float[Tensor, "B G V"]:
        """Predicts every answer position, given the prompts and the partly masked answers."""
        tokens = torch.cat((batch.tokens[:, : batch.start], answers), 1)
        hidden = hidden_of_answers(self.model, replace(batch, tokens=tokens))
        return self.model.transformer.head(hidden)


def hidden_of_answers(model: MaskedTransformer, batch: Batch) -> Float[Tensor, "B G H"]:
    """Returns the hidden state from which the head predicts each answer position of a canvas.

    Padding, positions and attention are those of `decode` with a model that sees everything.
    """
    columns = torch.arange(batch.start, batch.tokens.shape[1], device=batch.tokens.device)
    hidden: Tensor = model.transformer(
        batch.tokens,
        batch.rotary_positions,
        attend=batch.in_row[:, None],
        wanted=(columns - model.logit_shift).clamp(min=0).expand(len(batch.tokens), -1),
    )
    return hidden
