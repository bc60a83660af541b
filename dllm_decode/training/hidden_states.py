"""Hidden states from which the head predicts answers: of canvases, or of all blocks at once.

With all blocks at once, for a model that attends in blocks, a row is a prompt and an answer, then a
copy of the blocks that hold the answer, in which some positions are masked. A column sees its own
block and the blocks before it; a column of the copy sees its own block of the copy and the earlier
blocks of the original. Every block is then in the state in which a decoder meets it; a row with a
single canvas has only one block in that state.

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


def hidden_of_copies(
    model: MaskedTransformer, batch: Batch, masked: Bool[Tensor, "B G"], block_length: int
) -> Float[Tensor, "B G H"]:
    """Returns the hidden state from which the head predicts each answer position.

    Args:
        model: A block-causal model.
        batch: Prompts and answers.
        masked: Answer positions that are masked in the copy.
        block_length: Length of the blocks that are copied. If it is a multiple of the model's, a
            column sees the model's blocks up to its own; otherwise, the whole copied block.
    """
    width = batch.tokens.shape[1]
    positions, blocks = batch.rotary_positions, batch.blocks(block_length)
    # The copy begins with the block in which the first answer begins.
    first = int((blocks < blocks[:, batch.start, None]).sum(-1).min())
    copy_masked = F.pad(masked, (batch.start - first, 0))
    copied = batch.tokens[:, first:].masked_fill(copy_masked, model.mask_id)
    targets = torch.arange(batch.start, width, device=batch.tokens.device)
    predictors = width - first + targets.expand_as(masked)
    if model.logit_shift:
        is_in_block = blocks[:, targets] == blocks[:, targets - 1]
        predictors = torch.where(is_in_block, predictors - 1, targets - 1)
    is_multiple = block_length % model.causal_block_length == 0
    attended = batch.blocks(model.causal_block_length) if is_multiple else blocks
    hidden: Tensor = model.transformer(
        torch.cat((batch.tokens, copied), 1),
        torch.cat((positions, positions[:, first:]), 1),
        attend=_who_sees_whom(batch, blocks, attended, first),
        wanted=predictors,
    )
    return hidden


def _who_sees_whom(
    batch: Batch, blocks: Int[Tensor, "B L"], attended: Int[Tensor, "B L"], first: int
) -> Bool[Tensor, "B Q K"]:
    """Returns which columns see which, in a batch and in its copy from column `first` on.

    `blocks` are the blocks that are copied, `attended` those in which columns attend.
    """
    copied, attended_copied = blocks[:, first:], attended[:, first:]
    original = F.pad(attended[:, :, None] >= attended[:, None], (0, copied.shape[1]))
    earlier = copied[:, :, None] > blocks[:, None]
    same = copied[:, :, None] == copied[:, None]
    same &= attended_copied[:, :, None] >= attended_copied[:, None]
    seen = torch.cat((original, torch.cat((earlier, same), 2)), 1)
    return seen & torch.cat((batch.in_row, batch.in_row[:, first:]), 1)[:, None]
