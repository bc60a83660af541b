"""The loss of a masked-diffusion model."""

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from dllm_decode.models.masked_transformer import MaskedTransformer
from dllm_decode.training.examples import Batch
from dllm_decode.training.masking import MaskSampler
from dllm_decode.training.objective import Objective


class MaskedDiffusion(Objective[Batch]):
    """Mean cross-entropy over the masked answer positions.

    The EOS tokens behind an answer are masked and learned like any other: no position behind the
    prompt is ever visible in training that is masked in decoding. Where the logits at a column
    predict the next one, they are shifted.

    Source: Nie et al. 2025, "Large Language Diffusion Models", https://arxiv.org/abs/2502.09992,
    SFT, where answers are padded with EOS and the padding is part of the answer.

    Differs: Every masked position weighs the same; LLaDA weighs those of a row by 1 / t. States
    that hide little thereby count more in the loss than in the likelihood bound.
    """

    model: MaskedTransformer

    def __init__(self, model: MaskedTransformer, masks: MaskSampler) -> None:
        self.model = model
        self.eos_id = model.eos_ids[0]
        self._masks = masks

    def loss(self, batch: Batch, generator: torch.Generator) -> Float[Tensor, ""]:
        """Masks a batch and returns its mean loss, in nats."""
        answers = batch.tokens[:, batch.start :]
        masked = self._masks.draw(answers, self.eos_id, generator)
        logits = self.logits(batch, answers.masked_fill(masked, self.model.mask_id))
        losses = F.cross_entropy(logits.float().transpose(1, 2), answers, reduction="none")
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
    columns = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
    wanted = (columns[batch.start :] - model.logit_shift).clamp(min=0)
    hidden: Tensor = model.transformer(
        batch.tokens,
        (columns - batch.pads[:, None]).clamp(min=0),
        attend=(columns >= batch.pads[:, None])[:, None],
        wanted=wanted.expand(len(batch.tokens), -1),
    )
    return hidden
