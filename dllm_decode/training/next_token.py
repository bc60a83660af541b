"""The loss of a causal model, for a masked-diffusion model that begins as one."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from dllm_decode.models import MaskedTransformer
from dllm_decode.training.examples import Batch
from dllm_decode.training.objective import Objective


class NextToken(Objective):
    """Mean cross-entropy of each answer token, given the prompt and the tokens before it.

    Nothing is masked. The prompt sees itself in both directions, as in a diffusion model. A causal
    model that begins to read its prompt so must learn its look-ups again. This loss teaches them
    with every token of an answer, before there are masks.

    Source: Ye et al. 2025, "Dream 7B", https://arxiv.org/abs/2508.15487, whose shifted logits let
    a model go from this loss to masked diffusion.

    Args:
        model: A model whose logits are shifted.

    Raises:
        ValueError: If they are not.
    """

    model: MaskedTransformer

    def __init__(self, model: MaskedTransformer) -> None:
        if model.logit_shift != 1:
            raise ValueError(
                f"The logits of {model.name} must be shifted by 1 to predict the next token, got "
                f"{model.logit_shift}."
            )
        self.model = model
        self.eos_id = model.eos_ids[0]

    def loss(self, batch: Batch, generator: torch.Generator) -> Float[Tensor, ""]:
        """Returns the mean loss of a batch, in nats; nothing is drawn."""
        answers = batch.tokens[:, batch.start :]
        columns = torch.arange(batch.tokens.shape[1], device=batch.tokens.device)
        order = columns.clamp(min=batch.start - 1)
        seen = (order[:, None] >= order) & (columns >= batch.pads[:, None, None])
        hidden = self.model.transformer(
            batch.tokens,
            (columns - batch.pads[:, None]).clamp(min=0),
            attend=seen,
            wanted=(columns[batch.start :] - 1).expand_as(answers),
        )
        ends = (answers != self.eos_id).long().cumprod(-1).sum(-1)
        learned = torch.arange(batch.gen_length, device=answers.device) <= ends[:, None]
        logits = self.model.transformer.head(hidden[learned])
        return F.cross_entropy(logits.float(), answers[learned])
