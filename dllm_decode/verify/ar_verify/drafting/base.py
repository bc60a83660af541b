"""The contract of drafting: logits of the mask predictor become a draft for the target."""

from abc import ABC, abstractmethod

from jaxtyping import Float, Int
from torch import Tensor

from dllm_decode.verify.drafts import Beginning, Draft
from samplers.checks import CheckedFields


class Drafting(CheckedFields, ABC):
    """Makes a draft from the logits of the mask predictor."""

    @property
    def num_forwards(self) -> int:
        """Forwards of the mask predictor that a draft is made from.

        0: the mask predictor never runs, and `draft` gets no logits, V = 0.
        """
        return 1

    @property
    def is_drawn(self) -> bool:
        """True if drafts are drawn, so that all rows must have one temperature."""
        return False

    @property
    def keeps_alternatives(self) -> bool:
        """True if a draft may replace a token that the sampler committed between two forwards.

        Then `draft` gets the logits from which the token was committed, otherwise logits that are
        certain of the token.
        """
        return False

    @abstractmethod
    def draft(
        self,
        beginning: Beginning,
        logits: Float[Tensor, "B K V"],
        lengths: Int[Tensor, " B"],
    ) -> Draft:
        """Returns a draft of each row.

        Args:
            beginning: Where the drafts begin.
            logits: Logits of the positions from each row's first unsettled one on.
            lengths: Positions that a draft may reach, unless the draft ends with an EOS before; at
                least 1, at most K.
        """
