"""Blocks of answers, masked in two ways that complement each other."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from dllm_decode.models import MaskedTransformer
from dllm_decode.training.block_copies import hidden_of_copies
from dllm_decode.training.examples import Batch


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


def lay_blocks(
    ends: Bool[Tensor, "B G"], block_length: int, leads: Int[Tensor, " B"] | None = None
) -> Blocks:
    """Divides answers into blocks.

    Args:
        ends: Positions that hold an EOS.
        block_length: In tokens.
        leads: Tokens of each prompt that belong to the block in which the answer begins; `None`:
            0 everywhere.
    """
    gen_length = ends.shape[1]
    positions = torch.arange(gen_length, device=ends.device).expand_as(ends)
    led = torch.zeros_like(positions) if leads is None else leads[:, None].expand_as(ends)
    number = (positions + led) // block_length
    start = (number * block_length - led).clamp(min=0)
    last = (~ends).long().cumprod(-1).sum(-1, keepdim=True).clamp(max=gen_length - 1)
    return Blocks(number, start, last)


def split(learned: Bool[Tensor, "B G"], first: Bool[Tensor, "B G"]) -> BlockMasks:
    """Shares out positions among two canvases.

    Args:
        learned: The positions.
        first: Those of the first canvas; where nothing is learned, any value.
    """
    ahead = learned.flip(1).cummax(1).values.flip(1)
    return BlockMasks(learned & first, learned & ~first, ~ahead)


def is_end(tokens: Int[Tensor, "B G"], eos_ids: tuple[int, ...]) -> Bool[Tensor, "B G"]:
    """Says which tokens end an answer."""
    return torch.isin(tokens, torch.tensor(eos_ids, device=tokens.device))


def leads_of(model: MaskedTransformer, batch: Batch) -> Int[Tensor, " B"]:
    """Counts the tokens of each prompt that belong to the block in which its answer begins.

    0 unless the model is block-causal: there blocks count from the first token of the prompt.
    """
    return (batch.start - batch.pads) % max(1, model.causal_block_length)


def require_fitting(model: MaskedTransformer, block_length: int) -> None:
    """Checks the length of the blocks that are learned.

    Raises:
        ValueError: If the model cannot be decoded in such blocks.
    """
    if block_length < 1:
        raise ValueError(f"block_length must be at least 1, got {block_length}.")
    own = model.causal_block_length
    if own and block_length % own:
        raise ValueError(
            f"block_length must be a multiple of {own}, since {model.name} attends in blocks of "
            f"{own} tokens, got {block_length}."
        )


HiddenStates = Callable[[MaskedTransformer, Batch, Tensor, int], Tensor]
"""Returns the hidden state from which the head predicts each answer position.

Given the model, prompts and answers, the masked positions and the length of blocks. `one_block` is
for one block of each answer and for every family; `hidden_of_copies` is for every block at once in
block-causal models, where no block sees those after it.
"""


def logits_of_both(
    model: MaskedTransformer,
    batch: Batch,
    masks: BlockMasks,
    block_length: int,
    *,
    hidden_states: HiddenStates | None = None,
) -> tuple[Float[Tensor, "B G V"], Float[Tensor, "B G V"]]:
    """Returns the predictions of every answer position, from either canvas.

    Where the logits at a column predict the next one they are shifted; in a block-causal model a
    column sees its own block and those before it, as in a decode.

    Args:
        model: The model, on its device.
        batch: Prompts and answers.
        masks: What is learned.
        block_length: Of the blocks that are masked, in tokens.
        hidden_states: `None`: those that learn most of an answer in one forward.
    """
    # A decode fills up the last block of a block-causal model with masks.
    num_more = max(0, model.causal_block_length - 1)
    tokens = F.pad(batch.tokens, (0, num_more), value=model.mask_id).repeat(2, 1)
    both = Batch(tokens, batch.pads.repeat(2), batch.gen_length + num_more)
    hidden_ones = torch.cat((masks.first | masks.behind, masks.second | masks.behind))
    masked = F.pad(hidden_ones, (0, num_more), value=True)
    states = hidden_states or (hidden_of_copies if model.causal_block_length else one_block)
    hidden = states(model, both, masked, block_length)[:, : batch.gen_length]
    one, other = model.transformer.head(hidden).float().chunk(2)
    return one, other


def one_block(
    model: MaskedTransformer, batch: Batch, masked: Bool[Tensor, "B G"], block_length: int
) -> Float[Tensor, "B G H"]:
    """Returns hidden states on the canvas of a decode, see `HiddenStates`."""
    tokens = batch.tokens.masked_fill(F.pad(masked, (batch.start, 0)), model.mask_id)
    columns = torch.arange(tokens.shape[1], device=tokens.device)
    positions = columns - batch.pads[:, None]
    wanted = columns[batch.start :] - model.logit_shift
    hidden: Tensor = model.transformer(
        tokens,
        positions.clamp(min=0),
        attend=_attend(positions, model.causal_block_length),
        wanted=wanted.clamp(min=0).expand(len(tokens), -1),
    )
    return hidden


def _attend(
    positions: Int[Tensor, "B Q"], block_length: int
) -> Bool[Tensor, "B Q Q"] | Bool[Tensor, "B 1 Q"]:
    """Hides what fills up short rows on the left and, from a block-causal model, later blocks."""
    present = (positions >= 0)[:, None]
    if not block_length:
        return present
    blocks = positions.div(block_length, rounding_mode="floor")
    return (blocks[:, None] <= blocks[..., None]) & present
