"""Blocks of answers, masked in two ways that complement each other."""

from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from dllm_decode.models import MaskedTransformer
from dllm_decode.training.block_diffusion import hidden_of_copies
from dllm_decode.training.examples import Batch
from dllm_decode.training.masked_diffusion import hidden_of_answers


class BlockMasks(NamedTuple):
    """One block of each answer, or every block, masked in two ways.

    Attributes:
        first: Positions that one canvas masks.
        second: The other positions of the same blocks, which the other canvas masks.
        behind: Positions behind these blocks, masked on both.
    """

    first: Bool[Tensor, "B G"]
    second: Bool[Tensor, "B G"]
    behind: Bool[Tensor, "B G"]


class Blocks(NamedTuple):
    """The blocks of each answer; its first and its last may be shorter.

    Attributes:
        number: Of each position's block, from 0.
        start: The first position of each position's block.
        last: The last position of the answer, which holds its first EOS.
    """

    number: Int[Tensor, "B G"]
    start: Int[Tensor, "B G"]
    last: Int[Tensor, "B 1"]

    def learned(self, uniform: Float[Tensor, "B 1"] | None) -> Bool[Tensor, "B G"]:
        """Selects the positions of one block of each answer, or of all.

        Args:
            uniform: In [0, 1), a number a row that says which block; `None`: every block.
        """
        positions = torch.arange(self.number.shape[1], device=self.number.device)
        inside = positions <= self.last
        if uniform is None:
            return inside
        num_blocks = self.number.gather(1, self.last) + 1
        return inside & (self.number == (uniform * num_blocks).long())


def lay_blocks(ends: Bool[Tensor, "B G"], block_length: int, leads: Int[Tensor, " B"]) -> Blocks:
    """Divides answers into blocks; `ends` are the positions that hold an EOS.

    `leads` counts the tokens of each prompt that belong to the block in which the answer begins.
    """
    gen_length = ends.shape[1]
    positions = torch.arange(gen_length, device=ends.device).expand_as(ends)
    number = (positions + leads[:, None]) // block_length
    start = (number * block_length - leads[:, None]).clamp(min=0)
    last = (~ends).long().cumprod(-1).sum(-1, keepdim=True).clamp(max=gen_length - 1)
    return Blocks(number, start, last)


def split(learned: Bool[Tensor, "B G"], first: Bool[Tensor, "B G"]) -> BlockMasks:
    """Shares out positions among two canvases; `first` are those of the first one."""
    ahead = learned.flip(1).cummax(1).values.flip(1)
    return BlockMasks(learned & first, learned & ~first, ~ahead)


def blocks_of_answers(model: MaskedTransformer, batch: Batch, block_length: int) -> Blocks:
    """Divides the answers of a batch into the blocks of a decode.

    In a block-causal model blocks count from the first token of the prompt.
    """
    answers = batch.tokens[:, batch.start :]
    ends = torch.isin(answers, torch.tensor(model.eos_ids, device=answers.device))
    leads = (batch.start - batch.pads) % max(1, model.causal_block_length)
    return lay_blocks(ends, block_length, leads)


def logits_of_both(
    model: MaskedTransformer, batch: Batch, masks: BlockMasks, block_length: int
) -> tuple[Float[Tensor, "B G V"], Float[Tensor, "B G V"]]:
    """Returns the predictions of every answer position, from either canvas.

    Where the logits at a column predict the next one they are shifted; in a block-causal model a
    column sees its own block and those before it, as in a decode. `block_length` is that of the
    blocks that are masked.
    """
    # A decode fills up the last block of a block-causal model with masks.
    num_more = max(0, model.causal_block_length - 1)
    tokens = F.pad(batch.tokens, (0, num_more), value=model.mask_id).repeat(2, 1)
    both = Batch(tokens, batch.pads.repeat(2), batch.gen_length + num_more)
    masked = torch.cat((masks.first | masks.behind, masks.second | masks.behind))
    if model.causal_block_length:
        masked = F.pad(masked, (0, num_more), value=True)
        hidden = hidden_of_copies(model, both, masked, block_length)[:, : batch.gen_length]
    else:
        tokens = tokens.masked_fill(F.pad(masked, (batch.start, 0)), model.mask_id)
        hidden = hidden_of_answers(model, replace(both, tokens=tokens))
    one, other = model.transformer.head(hidden).float().chunk(2)
    return one, other
