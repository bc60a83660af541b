"""All blocks of an answer in one forward of a model that attends in blocks.

A row is a prompt and an answer, then a copy of the blocks that hold the answer, in which some
positions are masked. A column sees its own block and the blocks before it; a column of the copy
sees its own block of the copy and the earlier blocks of the original. Every block is then in the
state in which a decoder meets it; a row with a single canvas has only one block in that state.

Source: Arriola et al. 2025, "Block Diffusion: Interpolating Between Autoregressive and Diffusion
Language Models", https://arxiv.org/abs/2503.09573, the vectorised training; Wu et al. 2025,
"Fast-dLLM v2", https://arxiv.org/abs/2509.26328, where the logits of a column predict the next one.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from dllm_decode.models import MaskedTransformer
from dllm_decode.training.examples import Batch, Objective
from samplers.checks import require_probability


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


@dataclass(eq=False)
class BlockDiffusion(Objective[Batch]):
    """Mean cross-entropy of masked positions, each block given the blocks before it.

    One forward learns every block as a decoder meets it (see `hidden_of_copies`), while
    `MaskedDiffusion` learns one state of each row.

    Each block masks k of its n answer positions; k is uniform on 1, ..., n. With probability
    `ordered_share` a row masks the last k of each block, otherwise any k. With probability
    `confident_share` a batch masks the k least confident ones while the whole block is masked: a
    decoder that commits the most confident ones first meets such states. EOS is learned up to the
    end of the block in which the answer ends.

    Source: As the module; Qian et al. 2026, "d3LLM", https://arxiv.org/abs/2601.07568, masks
    in a decoder's order.

    Differs: The order is from one forward of the model, not from a teacher's decode. Every masked
    position weighs the same.

    Attributes:
        model: A block-causal model.
        block_lengths: Each batch draws the length of its blocks from these, all equally likely;
            `None`: always the model's own. Shorter blocks are easier to learn first.
        ordered_share: Probability that a row's blocks are masked from the right.
        confident_share: Probability that a batch is masked by the model's confidence; such a batch
            needs one more forward, without gradients.

    Raises:
        ValueError: If the model attends in both directions, or an option is out of its range.
    """

    model: MaskedTransformer
    block_lengths: tuple[int, ...] | None = None
    ordered_share: float = 0.3
    confident_share: float = 0.0

    def __post_init__(self) -> None:
        model_block_length, lengths = self.model.causal_block_length, self.block_lengths
        if not model_block_length:
            raise ValueError(
                f"{self.model.name} must attend in blocks, got one that sees everything."
            )
        if lengths is not None and min(lengths, default=0) < 1:
            raise ValueError(f"block_lengths must be lengths of at least 1, got {lengths}.")
        require_probability("ordered_share", self.ordered_share)
        require_probability("confident_share", self.confident_share)

    def loss(self, batch: Batch, generator: torch.Generator) -> Float[Tensor, ""]:
        """Masks all blocks of a batch and returns the mean loss, in nats."""
        lengths = self.block_lengths or (self.model.causal_block_length,)
        drawn = torch.randint(len(lengths), (1,), generator=generator, device=generator.device)
        block_length = lengths[int(drawn)]
        blocks = batch.blocks(block_length)[:, batch.start :]
        masked = self.draw(blocks, generator)
        if torch.rand((), generator=generator, device=generator.device) < self.confident_share:
            masked = self.draw(blocks, generator, self.confidence(batch, block_length))
        learned = masked & (blocks <= blocks.gather(1, batch.ends(self.model.eos_ids[:1])))
        hidden = hidden_of_copies(self.model, batch, masked, block_length)
        logits = self.model.transformer.head(hidden[learned])
        return F.cross_entropy(logits.float(), batch.answers[learned])

    @torch.no_grad()
    def confidence(self, batch: Batch, block_length: int) -> Float[Tensor, "B G"]:
        """Returns the greatest probability at each answer position if its whole block is masked."""
        everything = torch.ones_like(batch.answers, dtype=torch.bool)
        hidden = hidden_of_copies(self.model, batch, everything, block_length)
        logits = self.model.transformer.head(hidden)
        return logits.float().softmax(-1).amax(-1)

    def draw(
        self,
        blocks: Int[Tensor, "B G"],
        generator: torch.Generator,
        confidence: Float[Tensor, "B G"] | None = None,
    ) -> Bool[Tensor, "B G"]:
        """Draws the masked positions of every block, at least one each.

        Args:
            blocks: The block of each answer position.
            generator: Of the masks.
            confidence: In [0, 1]; the least confident positions are masked. `None`: any, or the
                last ones.
        """
        device, (num_rows, gen_length) = blocks.device, blocks.shape
        blocks = blocks - blocks[:, :1]
        num_blocks = int(blocks.max()) + 1
        sizes = F.one_hot(blocks, num_blocks).sum(1)
        uniform = torch.rand(num_rows, num_blocks, generator=generator, device=device)
        counts = (1 + (uniform * sizes).long()).minimum(sizes)
        scores = torch.rand(num_rows, gen_length, generator=generator, device=device)
        ordered = torch.rand(num_rows, 1, generator=generator, device=device) < self.ordered_share
        later = 1.0 - torch.arange(gen_length, device=device) / gen_length
        scores = torch.where(ordered, later, scores) if confidence is None else confidence / 2
        # Sorted by block, then by score, which is less than 1: a position's rank in its block.
        ranks = (scores + blocks).argsort(-1).argsort(-1)
        ranks = ranks - (sizes.cumsum(-1) - sizes).gather(1, blocks)
        return ranks < counts.gather(1, blocks)
