"""The contract of drafting: logits of the mask predictor become a draft for the target."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dllm_decode.verify.acceptance import Verdict
from dllm_decode.verify.drafts import Draft, DraftStart
from samplers.checks import CheckedFields


class Drafting(CheckedFields, ABC):
    """Makes a draft from the logits of the mask predictor.

    Attributes:
        num_forwards: Forwards of the mask predictor that a draft is made from. 0: the mask
            predictor never runs, and `draft` gets no logits, V = 0.
        is_drawn: True if drafts are drawn, so that all rows must have one temperature.
        keeps_alternatives: True if a draft may replace a token that the sampler committed between
            two forwards. Then `draft` gets the logits from which the token was committed, otherwise
            logits that are certain of the token.
    """

    num_forwards: int = 1
    is_drawn: bool = False
    keeps_alternatives: bool = False

    @abstractmethod
    def draft(
        self, start: DraftStart, logits: Float[Tensor, "B K V"], lengths: Int[Tensor, " B"]
    ) -> Draft:
        """Returns a draft of each row.

        Args:
            start: Where the drafts start.
            logits: Logits of the positions from each row's first unsettled one on.
            lengths: Positions that a draft may reach, unless the draft ends with an EOS before; at
                least 1, at most K.
        """

    def first_memory(self, start: DraftStart, vocab_size: int) -> Int[Tensor, "B ..."]:
        """Returns the memory of rows before their first round, zeros by default.

        A memory is all that a draft may use of earlier rounds, besides the text.

        Args:
            start: Where the first drafts start.
            vocab_size: Ids of the target's tokens are below this.
        """
        return torch.zeros_like(start.first_unsettled)[:, None]

    def memory_after(
        self,
        start: DraftStart,
        draft: Draft,
        target_logits: Float[Tensor, "B K1 V"],
        verdict: Verdict,
    ) -> Int[Tensor, "B ..."]:
        """Returns the memory after a round, by default the memory before the round.

        Args:
            start: Where the drafts started, with the memory before the round.
            draft: The drafts.
            target_logits: Logits of the target after the committed text, then after each token of
                the longest draft.
            verdict: The tokens that the target accepted and wrote.
        """
        assert start.memory is not None
        return start.memory
