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
    """

    first: Bool[Tensor, "B G"]
    second: Bool[Tensor, "B G"]

    @property
    def after(self) -> Bool[Tensor, "B G"]:
        """Positions after these blocks, which both canvases mask."""
        return (self.first | self.second).long().flip(1).cumsum(1).flip(1) == 0


class Blocks(NamedTuple):
    """The blocks of each answer; its first and its last may be shorter.

    Attributes:
        number: Of each position's block, from 0.
        start: The first position of each position's block.
        last: The last position of the answer, which holds its first EOS.
        all_at_once: True if no block sees later blocks, so that all blocks are learned together.
    """

    number: Int[Tensor, "B G"]
    start: Int[Tensor, "B G"]
    last: Int[Tensor, "B 1"]
    all_at_once: bool

    def learned(self, generator: torch.Generator) -> Bool[Tensor, "B G"]:
        """Draws one block of each answer and returns its positions, or those of every block."""
        device = self.number.device
        uniform = torch.rand(len(self.number), 1, generator=generator, device=device)
        inside = torch.arange(self.number.shape[1], device=device) <= self.last
        num_blocks = self.number.gather(1, self.last) + 1
        drawn = self.number == (uniform * num_blocks).long()
        return inside if self.all_at_once else inside & drawn


def blocks_of_answers(model: MaskedTransformer, batch: Batch, block_length: int) -> Blocks:
    """Divides the answers of a batch into the blocks of a decode.

    In a block-causal model blocks count from the first token of the prompt.
    """
    model_block_length = model.causal_block_length
    # Tokens of the prompt that belong to the block in which the answer begins.
    leads = ((batch.start - batch.pads) % max(1, model_block_length))[:, None]
    positions = torch.arange(batch.gen_length, device=batch.tokens.device)
    number = (positions + leads) // block_length
    start = (number * block_length - leads).clamp(min=0)
    return Blocks(number, start, batch.ends(model.eos_ids), all_at_once=model_block_length > 0)


def logits_of_both(
    model: MaskedTransformer, batch: Batch, masks: BlockMasks, block_length: int
) -> tuple[Float[Tensor, "B G V"], Float[Tensor, "B G V"]]:
    """Returns the predictions of every answer position, from either canvas.

    Logits that predict the next column are shifted. In a block-causal model a column sees its own
    block and the blocks before it, as in a decode. `block_length` is the length of the blocks that
    are masked.
    """
    # A decode fills up the last block of a block-causal model with masks.
    num_more = max(0, model.causal_block_length - 1)
    tokens = F.pad(batch.tokens, (0, num_more), value=model.mask_id).repeat(2, 1)
    both = Batch(tokens, batch.pads.repeat(2), batch.gen_length + num_more)
    masked = torch.cat((masks.first | masks.after, masks.second | masks.after))
    if model.causal_block_length:
        masked = F.pad(masked, (0, num_more), value=True)
        hidden = hidden_of_copies(model, both, masked, block_length)[:, : batch.gen_length]
    else:
        tokens = tokens.masked_fill(F.pad(masked, (batch.start, 0)), model.mask_id)
        hidden = hidden_of_answers(model, replace(both, tokens=tokens))
    first, second = model.transformer.head(hidden).float().chunk(2)
    return first, second
