"""Distillation that makes a masked-diffusion model sure of several tokens at a time.

dParallel and d3LLM train on a model's own answers. In each answer, one block is masked in two ways
that complement each other; the blocks after it are masked and not in the loss. A block-causal model
learns every block of an answer at once, because no block sees later ones. In addition to the
cross-entropy, the loss lowers the entropy of predictions that are right already, so that more of
these pass a decoder's threshold in the same forward.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from dllm_decode.models import MaskedTransformer
from dllm_decode.training.answer_blocks import BlockMasks, Blocks, blocks_of_answers, logits_of_both
from dllm_decode.training.examples import Batch, Objective
from samplers.checks import require_count, require_non_negative, require_positive

ENTROPY_FLOOR = 1e-12
"""Added to probabilities inside the logarithm, as in the authors' code."""


class Certainty(NamedTuple):
    """Means over the masked positions of a batch, in nats.

    Attributes:
        cross_entropy: Of the answer's tokens; 0 where nothing is masked.
        entropy: Of the predictions, at a temperature, over the positions whose most probable token
            is the answer's; 0 where there is none.
    """

    cross_entropy: Float[Tensor, ""]
    entropy: Float[Tensor, ""]


def certainty(
    logits: Float[Tensor, "B G V"],
    answers: Int[Tensor, "B G"],
    masked: Bool[Tensor, "B G"],
    temperature: float,
) -> Certainty:
    """Measures how well and how surely masked positions are predicted.

    The temperature divides the logits before the entropy; below 1, the most probable tokens
    count more.
    """
    chosen, wanted = logits[masked], answers[masked]
    losses = F.cross_entropy(chosen, wanted, reduction="sum") / max(1, len(wanted))
    right_logits = chosen[chosen.argmax(-1) == wanted]
    probability = (right_logits / temperature).softmax(-1)
    entropies = -(probability * (probability + ENTROPY_FLOOR).log()).sum(-1)
    return Certainty(losses, entropies.sum() / max(1, len(entropies)))


@dataclass(frozen=True)
class CertaintyLoss:
    """The loss of two canvases, A and A', from their cross-entropies and entropies.

        dparallel: CE(A) + CE(A') + entropy_weight (H(A) + H(A'))
        d3llm: (CE(A) + CE(A') + entropy_weight H(A)) / 4

    In dParallel both canvases count alike; in d3LLM only the teacher's state, A, is to become more
    certain.

    Source: Chen et al. 2025, "dParallel: Learnable Parallel Decoding for dLLMs",
    https://arxiv.org/abs/2509.26488, certainty-forcing distillation; Qian et al. 2026, "d3LLM:
    Ultra-Fast Diffusion LLM using Pseudo-Trajectory Distillation",
    https://arxiv.org/abs/2601.07568, and its code, whose divisor is 4.

    Attributes:
        method: "dparallel" or "d3llm".
        temperature: Of the entropy, above 0; 0.5 in the papers.
        entropy_weight: At least 0 and finite; 2 for LLaDA and 1 for Dream in the authors' code.
    """

    method: Literal["dparallel", "d3llm"]
    temperature: float = 0.5
    entropy_weight: float = 2.0

    def __post_init__(self) -> None:
        require_positive("temperature", self.temperature)
        require_non_negative("entropy_weight", self.entropy_weight)
        if self.entropy_weight == math.inf:
            raise ValueError("entropy_weight must be finite, got inf.")

    def __call__(self, first: Certainty, second: Certainty) -> Float[Tensor, ""]:
        """Adds up the measurements of the two canvases."""
        losses = first.cross_entropy + second.cross_entropy
        if self.method == "d3llm":
            return (losses + self.entropy_weight * first.entropy) / 4
        return losses + self.entropy_weight * (first.entropy + second.entropy)

    def of(
        self, model: MaskedTransformer, batch: Batch, masks: BlockMasks, block_length: int
    ) -> Float[Tensor, ""]:
        """Returns the loss of two canvases that mask complementary parts of the answers' blocks."""
        first, second = logits_of_both(model, batch, masks, block_length)
        return self(
            certainty(first, batch.answers, masks.first, self.temperature),
            certainty(second, batch.answers, masks.second, self.temperature),
        )


class CertaintyForcing(Objective[Batch]):
    """dParallel: a random half of one block of each answer is masked, then the other half.

    The block is uniform among those of the answer, its first EOS included; each position of it is
    masked with probability 1/2. In a block-causal model, every block is masked in this way.

    Source: As `CertaintyLoss`; block-causal models are not in these papers.

    Differs: Every row has a block and masks of its own; the authors' code, run with one row a
    batch, gives all rows those of the last. If the block length divides an answer's length, that
    code may choose the empty block after the answer; here blocks are never empty.

    Args:
        model: The model that is distilled.
        block_length: In tokens; for a block-causal model, a multiple of the model's.
        loss: How the parts are weighted.

    Raises:
        ValueError: If the block length does not fit the model.
    """

    model: MaskedTransformer

    def __init__(
        self, model: MaskedTransformer, block_length: int = 32, *, loss: CertaintyLoss
    ) -> None:
        require_count("block_length", block_length, 1)
        own_length = model.causal_block_length
        if own_length and block_length % own_length:
            raise ValueError(
                f"block_length must be a multiple of {own_length}, since {model.name} attends in "
                f"blocks of {own_length} tokens, got {block_length}."
            )
        self.model = model
        self._block_length = block_length
        self._loss = loss

    def loss(self, batch: Batch, generator: torch.Generator) -> Float[Tensor, ""]:
        """Masks blocks of every answer and returns the loss."""
        masks = self.draw(batch, generator)
        return self._loss.of(self.model, batch, masks, self._block_length)

    def draw(self, batch: Batch, generator: torch.Generator) -> BlockMasks:
        """Draws a block of each answer, or takes every block, and splits it at random."""
        learned = blocks_of_answers(self.model, batch, self._block_length).learned(generator)
        coins = torch.rand(learned.shape, generator=generator, device=learned.device) < 0.5
        return BlockMasks(learned & coins, learned & ~coins)


@dataclass(frozen=True)
class Curriculum:
    """The masked share and the length of blocks, which change over a run.

    The share of a block that is masked is uniform between a floor and `greatest_share`; the floor
    rises from 0 to `greatest_share` over the run. The run has an equal part for each of
    `block_lengths`, in which the length grows linearly from the previous length to this one.

    Source: As `CertaintyLoss`: curriculum noise level and curriculum window size.

    Attributes:
        greatest_share: In (0, 1]; 0.8 in the authors' configuration.
        block_lengths: In tokens, none smaller than the one before.
    """

    greatest_share: float = 0.8
    block_lengths: tuple[int, ...] = (16, 16, 24, 24, 32, 32)

    def __post_init__(self) -> None:
        if not 0.0 < self.greatest_share <= 1.0:
            raise ValueError(f"greatest_share must be in (0, 1], got {self.greatest_share}.")
        rises = all(a <= b for a, b in zip(self.block_lengths, self.block_lengths[1:]))  # noqa: B905
        if not self.block_lengths or self.block_lengths[0] < 1 or not rises:
            raise ValueError(
                "block_lengths must be lengths of at least 1 that do not fall, got "
                f"{self.block_lengths}."
            )

    def share(self, spent: float, uniform: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        """Returns the masked share of each block, `spent` of the run being over."""
        floor = self.greatest_share * min(1.0, spent)
        return floor + uniform * (self.greatest_share - floor)

    def block_length(self, spent: float) -> int:
        """Returns the length of blocks, `spent` of the run being over."""
        num_parts = len(self.block_lengths)
        part = min(int(spent * num_parts), num_parts - 1)
        target = self.block_lengths[part]
        before = self.block_lengths[max(0, part - 1)]
        return round(before + (target - before) * min(1.0, spent * num_parts - part))


class TrajectoryForcing(Objective[Batch]):
    """d3LLM: a block is masked as it was when the teacher decoded the same answer.

    The state is the one in which the teacher had committed all before the block and a share 1 - t
    of the block; the curriculum draws t. Only the masks are the teacher's: other positions show the
    final answer. A block-causal model learns every block at once, and draws a t for each block.

    Source: As `CertaintyLoss`.

    Differs: A row without a recorded order is an error; the authors' code masks it at random.

    Args:
        model: The model that is distilled; batches have the teacher's `ranks`.
        curriculum: How masks change over the run.
        loss: How the parts are weighted.
    """

    model: MaskedTransformer

    def __init__(
        self, model: MaskedTransformer, *, curriculum: Curriculum, loss: CertaintyLoss
    ) -> None:
        self.model = model
        self._curriculum = curriculum
        self._loss = loss
        self._spent = 0.0

    def advance(self, spent: float) -> None:
        self._spent = spent

    def loss(self, batch: Batch, generator: torch.Generator) -> Float[Tensor, ""]:
        """Masks blocks of every answer as in the teacher's decode, and returns the loss."""
        # A multiple of a block-causal model's block length.
        multiple = max(1, self.model.causal_block_length)
        block_length = max(
            multiple, self._curriculum.block_length(self._spent) // multiple * multiple
        )
        masks = self.draw(batch, generator, block_length)
        return self._loss.of(self.model, batch, masks, block_length)

    def draw(self, batch: Batch, generator: torch.Generator, block_length: int) -> BlockMasks:
        """Draws states of the teacher for each row, of one block or of every block."""
        if batch.ranks is None:
            raise ValueError("Every row must have the order in which the teacher committed it.")
        blocks = blocks_of_answers(self.model, batch, block_length)
        learned = blocks.learned(generator)
        drawn = torch.rand(learned.shape, generator=generator, device=learned.device)
        share = self._curriculum.share(self._spent, drawn.gather(1, blocks.start))
        return masks_of_states(batch.ranks, blocks, learned, share, block_length)


def masks_of_states(
    ranks: Int[Tensor, "B G"],
    blocks: Blocks,
    learned: Bool[Tensor, "B G"],
    share: Float[Tensor, "B G"],
    block_length: int,
) -> BlockMasks:
    """Masks the positions of each block that the teacher had not committed yet.

    The teacher commits one token a step, so the state with c commits masks the ranks from c on. In
    the chosen state, all before the block and 1 - share of a whole block are committed.
    `ranks` are as in `Batch`, `learned` are the positions of the blocks that are learned, and
    `share` is the same at all positions of a block. The last block of an answer may be shorter than
    `block_length`.
    """
    committed = blocks.start + ((1.0 - share) * block_length).long()
    masked = ranks >= committed.minimum(blocks.last)
    return BlockMasks(learned & masked, learned & ~masked)
