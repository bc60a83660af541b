"""Masked diffusion on all blocks of an answer at a time."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from dllm_decode.models import MaskedTransformer
from dllm_decode.training.examples import Batch
from dllm_decode.training.objective import Objective


class AllBlocks(Objective):
    """Mean cross-entropy of masked positions, every block given those before it.

    A row is the prompt, the answer, and a copy of the answer in which each block is partly masked.
    A block of the copy sees itself, the prompt and the blocks of the answer before it; a block of
    the answer sees itself and what precedes it. One forward thus learns as many blocks as there
    are, where a row of `MaskedDiffusion` has one state only. Block by block the masks are a
    decoder's: k of n positions, k uniform on 1, ..., n, any of them or the last.

    What it does not teach is that prompt and answer see what follows them, as in LLaDA. It is meant
    for the beginning of a training, or beside a loss that does.

    Source: Arriola et al. 2025, "Block Diffusion: Interpolating Between Autoregressive and
    Diffusion Language Models", https://arxiv.org/abs/2503.09573, the vectorised training.

    Differs: The length of blocks is drawn for each batch, and where the first one ends, unless it
    is whole; every masked position weighs the same.

    Args:
        model: The model that is trained.
        block_lengths: From which the length of blocks is drawn, each equally likely.
        ordered_share: Probability that a row's blocks are masked from the right.
        whole_share: Probability that the first block of a batch is whole, as a decoder's is.
    """

    model: MaskedTransformer

    def __init__(
        self,
        model: MaskedTransformer,
        block_lengths: tuple[int, ...] = (1, 1, 4, 8, 16, 32),
        ordered_share: float = 0.5,
        whole_share: float = 0.0,
    ) -> None:
        if not block_lengths or min(block_lengths) < 1:
            raise ValueError(f"block_lengths must be lengths of at least 1, got {block_lengths}.")
        for name, share in {"ordered_share": ordered_share, "whole_share": whole_share}.items():
            if not 0.0 <= share <= 1.0:
                raise ValueError(f"{name} must be a probability in [0, 1], got {share}.")
        self.model = model
        self.eos_id = model.eos_ids[0]
        self._block_lengths = block_lengths
        self._ordered_share = ordered_share
        self._whole_share = whole_share

    def loss(self, batch: Batch, generator: torch.Generator) -> Float[Tensor, ""]:
        """Masks all blocks of a batch and returns the mean loss, in nats."""
        answers = batch.tokens[:, batch.start :]
        blocks = self.draw_blocks(batch.gen_length, generator)
        masked = self.draw(len(answers), blocks, generator)
        hidden = self.hidden(batch, blocks, masked)
        # The EOS that ends the answer is learned, and a few of those that fill it up.
        ends = (answers != self.eos_id).long().cumprod(-1).sum(-1)
        near = torch.arange(batch.gen_length, device=answers.device) <= ends[:, None] + 2
        learned = masked & near
        logits = self.model.transformer.head(hidden[learned])
        return F.cross_entropy(logits.float(), answers[learned])

    def hidden(
        self, batch: Batch, blocks: Int[Tensor, " G"], masked: Bool[Tensor, "B G"]
    ) -> Float[Tensor, "B G H"]:
        """Returns the hidden state from which the head predicts each answer position.

        Args:
            batch: Prompts and answers.
            blocks: The block of each position.
            masked: What the copy hides of the answers.
        """
        copy = copy_of(blocks, self.model.logit_shift)
        columns = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
        positions = (columns - batch.pads[:, None]).clamp(min=0)
        sources = batch.start + copy.sources
        hidden_ones = masked[:, copy.sources] & ~copy.is_lead
        copied = batch.tokens[:, sources].masked_fill(hidden_ones, self.model.mask_id)
        hidden: Tensor = self.model.transformer(
            torch.cat((batch.tokens, copied), 1),
            torch.cat((positions, positions[:, sources]), 1),
            attend=who_sees_whom(batch, blocks, copy),
            wanted=(len(columns) + copy.predictors).expand_as(masked),
        )
        return hidden

    def draw_blocks(self, gen_length: int, generator: torch.Generator) -> Int[Tensor, " G"]:
        """Draws the length of blocks and of the first one; returns the block of each position."""
        device = generator.device
        drawn = torch.rand(3, generator=generator, device=device).tolist()
        block_length = self._block_lengths[int(drawn[0] * len(self._block_lengths))]
        missing = 0 if drawn[1] < self._whole_share else int(drawn[2] * block_length)
        return (torch.arange(gen_length, device=device) + missing) // block_length

    def draw(
        self, num_rows: int, blocks: Int[Tensor, " G"], generator: torch.Generator
    ) -> Bool[Tensor, "B G"]:
        """Draws the masked positions of every block, at least one each.

        Args:
            num_rows: Rows of the batch.
            blocks: The block of each position.
            generator: Of the masks.
        """
        device, gen_length = blocks.device, len(blocks)
        num_blocks = int(blocks[-1]) + 1
        sizes = torch.bincount(blocks, minlength=num_blocks)
        shares = torch.rand(num_rows, num_blocks, generator=generator, device=device)
        counts = (1 + (shares * sizes).long()).minimum(sizes)
        scores = torch.rand(num_rows, gen_length, generator=generator, device=device)
        ordered = torch.rand(num_rows, generator=generator, device=device) < self._ordered_share
        later = 1.0 - torch.arange(gen_length, device=device) / gen_length
        scores = torch.where(ordered[:, None], later, scores)
        # Sorted by block, then by score: a position's rank within its block.
        ranks = (scores + blocks).argsort(-1).argsort(-1) - (sizes.cumsum(0) - sizes)[blocks]
        return ranks < counts[:, blocks]


class Copy(NamedTuple):
    """The columns of the masked copy, block after block.

    Where the logits at a column predict the next token, each block begins with a lead: the token
    before it, known, whose logits predict the first of the block.

    Attributes:
        sources: Position in the answer that a column is a copy of; -1: the prompt's last.
        blocks: The block that a column belongs to, or leads.
        is_lead: Whether a column is a lead.
        predictors: The column whose logits predict a position of the answer.
    """

    sources: Int[Tensor, " C"]
    blocks: Int[Tensor, " C"]
    is_lead: Bool[Tensor, " C"]
    predictors: Int[Tensor, " G"]


def copy_of(blocks: Int[Tensor, " G"], logit_shift: int) -> Copy:
    """Lays out the masked copy of an answer, given the block of each position."""
    positions = torch.arange(len(blocks), device=blocks.device)
    first = F.pad(blocks.diff(), (1, 0), value=1) > 0
    held = positions.repeat_interleave(1 + first * logit_shift)
    is_lead = F.pad(held.diff(), (0, 1), value=1) == 0
    return Copy(
        held - is_lead.long(), blocks[held], is_lead, (~is_lead).nonzero()[:, 0] - logit_shift
    )


def who_sees_whom(batch: Batch, blocks: Int[Tensor, " G"], copy: Copy) -> Bool[Tensor, "B Q K"]:
    """Says for prompt, answer and masked copy which columns each column sees.

    A lead stands for the token before its block, so its block does not see that token twice.
    """
    device = batch.tokens.device
    columns = torch.arange(batch.tokens.shape[1], device=device)
    prompt = torch.full((batch.start,), -1, device=device)
    block = torch.cat((prompt, blocks))
    own = block[:, None] >= block
    firsts = torch.searchsorted(copy.blocks, copy.blocks)
    earlier = columns < (batch.start + copy.sources[firsts])[:, None]
    same = copy.blocks[:, None] == copy.blocks
    seen = torch.cat((F.pad(own, (0, len(copy.blocks))), torch.cat((earlier, same), 1)))
    padded = F.pad(columns < batch.pads[:, None], (0, len(copy.blocks)))
    return seen & ~padded[:, None]
