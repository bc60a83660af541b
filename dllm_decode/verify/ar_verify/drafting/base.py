"""What a verifier's target reads: drafts, and those who make them."""

from abc import ABC, abstractmethod
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from dllm_decode.canvas import Canvas
from dllm_decode.session import Session


class Draft(NamedTuple):
    """One draft a row.

    Attributes:
        tokens: The tokens, from the first masked position on.
        counts: How many of them are meant.
        logs: Log-probabilities of the law that each token was drawn from, which may depend on the
            tokens to its left, never on those to its right. `None` if they were not drawn, but
            chosen in any other way.
        temperature: If given, `logs` are logits, and the law is softmax(logs / temperature), which
            is then computed only where it is asked for.
    """

    tokens: Int[Tensor, "B K"]
    counts: Int[Tensor, " B"]
    logs: Float[Tensor, "B K V"] | None = None
    temperature: float | None = None


class Drafting(ABC):
    """Makes a draft out of what the mask predictor sees."""

    @property
    def num_forwards(self) -> int:
        """Forwards of the mask predictor that a draft is made from."""
        return 1

    @abstractmethod
    def draft(
        self,
        session: Session,
        canvas: Canvas,
        logits: Float[Tensor, "B K V"],
        lengths: Int[Tensor, " B"],
    ) -> Draft:
        """Returns a draft of each row.

        Args:
            session: Has the temperature and the noise.
            canvas: The rows.
            logits: Of the positions from each row's first mask on.
            lengths: Of the drafts, unless they end with an EOS before; at least 1, at most K.
        """
