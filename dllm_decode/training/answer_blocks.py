"""One block of each answer, masked in two ways that complement each other."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from dllm_decode.geometry import attention_mask
from dllm_decode.models import MaskedTransformer
from dllm_decode.training.examples import Batch


class BlockMasks(NamedTuple):
    """One block of each answer, masked in two ways.

    Attributes:
        first: Positions of the block that one canvas masks.
        second: The other positions of the block, which the other canvas masks.
        behind: Positions behind the block, masked on both.
    """

    first: Bool[Tensor, "B G"]
    second: Bool[Tensor, "B G"]
    behind: Bool[Tensor, "B G"]


class Blocks(NamedTuple):
    """A block of each answer.

    Attributes:
        start: Its first position.
        end: The position behind it.
        last: The last position of the answer, which holds its first EOS.
    """

    start: Int[Tensor, " B"]
    end: Int[Tensor, " B"]
    last: Int[Tensor, " B"]


def choose_block(
    ends: Bool[Tensor, "B G"],
    block_length: int,
    uniform: Float[Tensor, " B"],
    leads: Int[Tensor, " B"] | None = None,
) -> Blocks:
    """Chooses a block of each answer; its first and its last may be shorter.

    Args:
        ends: Positions that hold an EOS.
        block_length: In tokens.
        uniform: In [0, 1), a number a row that says which block.
        leads: Tokens of each prompt that belong to the block in which the answer begins; `None`:
            0 everywhere.
    """
    gen_length = ends.shape[1]
    leads = torch.zeros_like(uniform, dtype=torch.long) if leads is None else leads
    lengths = ((~ends).long().cumprod(-1).sum(-1) + 1).clamp(max=gen_length)
    num_blocks = (lengths + leads + block_length - 1) // block_length
    start = (uniform * num_blocks).long() * block_length - leads
    return Blocks(start.clamp(min=0), torch.minimum(start + block_length, lengths), lengths - 1)


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


class ComplementaryCanvases:
    """Predicts an answer from two canvases that mask complementary parts of a block.

    Works for every family. Where the logits at a column predict the next one they are shifted; in
    a block-causal model a column sees its own block and those before it, as in a decode.

    Args:
        model: The model, on its device.
    """

    def __init__(self, model: MaskedTransformer) -> None:
        self._model = model

    def logits(
        self, batch: Batch, masks: BlockMasks
    ) -> tuple[Float[Tensor, "B G V"], Float[Tensor, "B G V"]]:
        """Returns the predictions of every answer position, from either canvas."""
        model = self._model
        answers = batch.tokens[:, batch.start :]
        prompts = batch.tokens[:, : batch.start]
        canvases = [
            torch.cat((prompts, answers.masked_fill(part | masks.behind, model.mask_id)), 1)
            for part in (masks.first, masks.second)
        ]
        # A decode fills up the last block of a block-causal model with masks.
        num_more = max(0, model.causal_block_length - 1)
        tokens = F.pad(torch.cat(canvases), (0, num_more), value=model.mask_id)
        columns = torch.arange(tokens.shape[1], device=tokens.device)
        every = columns.expand(len(tokens), -1)
        pads = batch.pads.repeat(2)
        wanted = columns[batch.start : batch.tokens.shape[1]] - model.logit_shift
        hidden = model.transformer(
            tokens,
            (columns - pads[:, None]).clamp(min=0),
            attend=attention_mask(
                every,
                every,
                firsts=pads,
                ends=torch.full_like(pads, tokens.shape[1]),
                block_length=model.causal_block_length,
            ),
            wanted=wanted.clamp(min=0).expand(len(tokens), -1),
        )
        one, other = model.transformer.head(hidden).float().chunk(2)
        return one, other
