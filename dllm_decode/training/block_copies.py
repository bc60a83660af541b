"""All blocks of an answer in one forward of a model that attends in blocks.

A row is a prompt and an answer, and behind them a copy of the blocks that hold the answer, in which
some positions are masked. A column sees its own block and those before it; a column of the copy
sees its own block of the copy and the earlier blocks of the original. So every block is seen as a
decoder meets it, where a row with a single canvas has one block in that state.

Source: Arriola et al. 2025, "Block Diffusion: Interpolating Between Autoregressive and Diffusion
Language Models", https://arxiv.org/abs/2503.09573, the vectorised training; Wu et al. 2025,
"Fast-dLLM v2", https://arxiv.org/abs/2509.26328, where the logits of a column predict the next one.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from dllm_decode.models import MaskedTransformer
from dllm_decode.training.examples import Batch


def hidden_of_copies(
    model: MaskedTransformer, batch: Batch, masked: Bool[Tensor, "B G"], block_length: int
) -> Float[Tensor, "B G H"]:
    """Returns the hidden state from which the head predicts each answer position.

    Args:
        model: A block-causal model.
        batch: Prompts and answers.
        masked: What the copy hides of the answers.
        block_length: Of the blocks that are copied. In a multiple of the model's own blocks a
            column sees its own one and those before it; in blocks of another length, the whole.
    """
    device, width = batch.tokens.device, batch.tokens.shape[1]
    columns = torch.arange(width, device=device)
    positions = (columns - batch.pads[:, None]).clamp(min=0)
    blocks = blocks_of(batch, block_length)
    # The copy begins with the block in which the first answer begins.
    first = int((blocks < blocks[:, batch.start, None]).sum(-1).min())
    copied = batch.tokens[:, first:].masked_fill(
        F.pad(masked, (batch.start - first, 0)), model.mask_id
    )
    targets = columns[batch.start :]
    predictors = width - first + targets.expand_as(masked)
    if model.logit_shift:
        same = blocks[:, targets] == blocks[:, targets - 1]
        predictors = torch.where(same, predictors - 1, targets - 1)
    is_multiple = block_length % model.causal_block_length == 0
    own = blocks_of(batch, model.causal_block_length) if is_multiple else blocks
    hidden: Tensor = model.transformer(
        torch.cat((batch.tokens, copied), 1),
        torch.cat((positions, positions[:, first:]), 1),
        attend=_who_sees_whom(batch, blocks, own, first),
        wanted=predictors,
    )
    return hidden


def blocks_of(batch: Batch, block_length: int) -> Int[Tensor, "B L"]:
    """Returns the block of each column, counted from a row's first token; of padding: 0."""
    columns = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    return (columns - batch.pads[:, None]).clamp(min=0) // block_length


def _who_sees_whom(
    batch: Batch, blocks: Int[Tensor, "B L"], own: Int[Tensor, "B L"], first: int
) -> Bool[Tensor, "B Q K"]:
    """Says which columns each column sees, of a batch and of its copy from a column on.

    Args:
        batch: Prompts and answers.
        blocks: The copied block of each column.
        own: The block of each column in which it attends.
        first: The column that the copy begins with.
    """
    copied, own_copied = blocks[:, first:], own[:, first:]
    original = F.pad(own[:, :, None] >= own[:, None], (0, copied.shape[1]))
    earlier = copied[:, :, None] > blocks[:, None]
    same = copied[:, :, None] == copied[:, None]
    same &= own_copied[:, :, None] >= own_copied[:, None]
    seen = torch.cat((original, torch.cat((earlier, same), 2)), 1)
    columns = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    known = columns >= batch.pads[:, None]
    return seen & torch.cat((known, known[:, first:]), 1)[:, None]
