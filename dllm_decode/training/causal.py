"""The loss of a causal model that answers the same prompts."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from dllm_decode.training.examples import Batch
from dllm_decode.training.objective import Objective

IGNORED = -100


class Causal(Objective[Batch]):
    """Mean cross-entropy of the answer's tokens and of the EOS that ends it.

    Prompts are not learned. Rows are moved to the left, so that there is no padding to attend to:
    position 0 is the first token of the prompt.
    """

    model: PreTrainedModel

    def __init__(self, model: PreTrainedModel, eos_id: int) -> None:
        self.model = model
        self.eos_id = eos_id

    def loss(self, batch: Batch, generator: torch.Generator) -> Float[Tensor, ""]:
        """Returns the mean loss in nats; nothing about it is random."""
        tokens, labels = align_left(batch, self.eos_id)
        logits: Tensor = self.model(input_ids=tokens, use_cache=False).logits
        return F.cross_entropy(logits.float().transpose(1, 2), labels, ignore_index=IGNORED)


def align_left(batch: Batch, eos_id: int) -> tuple[Int[Tensor, "B L"], Int[Tensor, "B L"]]:
    """Returns tokens without left padding, and for each the next one where that is learned."""
    length = batch.tokens.shape[1]
    columns = torch.arange(length, device=batch.tokens.device)
    source = columns + batch.pads[:, None]
    tokens = batch.tokens.gather(1, source.clamp(max=length - 1))
    tokens = tokens.masked_fill(source >= length, eos_id)
    following = tokens.roll(-1, dims=1)
    in_answer = (source + 1 >= batch.start) & (source + 1 < length)
    # Of the EOS tokens only the first is learned: the position before it holds none.
    ended = in_answer & (source >= batch.start) & (tokens == eos_id)
    return tokens, following.masked_fill(~in_answer | ended, IGNORED)
