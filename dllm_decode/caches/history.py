"""When each column was computed, and how it was last predicted, for cache policies that read it."""

from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from dllm_decode.core.canvas import Canvas
from dllm_decode.core.window import Window
from samplers.state import map_state
from samplers.view import View


class LastLook(NamedTuple):
    """How the model last predicted each [MASK], at temperature 1.

    A token that a round commits keeps its values until the next look. Columns that no look has
    predicted, and tokens of earlier rounds, have confidence 1 and entropy 0.

    Attributes:
        confidence: `View.confidence`, the probability of the proposal.
        entropy: `View.entropy`, in nats, before `top_p` and `top_k`.
    """

    confidence: Float[Tensor, "B L"]
    entropy: Float[Tensor, "B L"]

    def after(self, canvas: Canvas, window: Window, view: View) -> "LastLook":
        """Returns the values after a look at a canvas; other masks keep theirs."""
        is_token = canvas.tokens != canvas.mask_id
        confidence, entropy = view.confidence.float(), view.entropy.float()
        return LastLook(
            window.put(self.confidence, view.masked, confidence).masked_fill(is_token, 1.0),
            window.put(self.entropy, view.masked, entropy).masked_fill(is_token, 0.0),
        )


class History(NamedTuple):
    """How often, and since when, each column was computed with its token.

    Attributes:
        clean_forwards: Forwards that computed each column since it was last computed as [MASK]. 0:
            the column's slot holds keys and values of [MASK], or nothing.
        clean_since: Number of the row's forward, from 1, that first computed each column with its
            token; 0: none did.
        num_forwards: Forwards of each row.
        looked: `None` unless the policy needs `Fact.LAST_LOOK`; policies read `last_look`.
    """

    clean_forwards: Int[Tensor, "B L"]
    clean_since: Int[Tensor, "B L"]
    num_forwards: Int[Tensor, " B"]
    looked: LastLook | None = None

    @property
    def last_look(self) -> LastLook:
        """How each [MASK] was last predicted.

        Raises:
            RuntimeError: If the policy does not need `Fact.LAST_LOOK`.
        """
        if self.looked is None:
            raise RuntimeError(
                "needs of a cache policy that reads last_look must have Fact.LAST_LOOK, got none."
            )
        return self.looked

    @staticmethod
    def of(canvas: Canvas, *, with_look: bool = False) -> "History":
        """Returns the history of rows before their first forward."""
        zeros = torch.zeros_like(canvas.tokens)
        float_zeros = torch.zeros_like(zeros, dtype=torch.float32)
        looked = LastLook(float_zeros + 1.0, float_zeros) if with_look else None
        return History(zeros, zeros, torch.zeros_like(canvas.prompt_lengths), looked)

    def joined(self, others: "History") -> "History":
        """Returns the history of these rows, then of the others."""
        width = max(self.clean_since.shape[1], others.clean_since.shape[1])

        def join(*parts: Tensor) -> Tensor:
            return torch.cat([
                pad(part, (0, width - part.shape[1])) if part.ndim > 1 else part for part in parts
            ])  # fmt: skip

        return cast(History, map_state(join, self, others))

    def pending(self, canvas: Canvas) -> Bool[Tensor, "B L"]:
        """Returns columns that hold [MASK], held it when last computed, or were never computed."""
        return (self.clean_forwards == 0) | (canvas.tokens == canvas.mask_id)

    def noted(
        self,
        canvas: Canvas,
        rows: Int[Tensor, " N"],
        columns: Int[Tensor, "N Q"],
    ) -> "History":
        """Returns the history after a forward that computed some columns of some rows."""
        clean, since, num_forwards = (part.clone() for part in self[:3])
        index = (rows[:, None], columns)
        is_masked = canvas.tokens[index] == canvas.mask_id
        num_forwards[rows] += 1
        clean[index] = (clean[index] + 1).masked_fill(is_masked, 0)
        first = torch.where(since[index] > 0, since[index], num_forwards[rows, None])
        since[index] = first.masked_fill(is_masked, 0)
        return History(clean, since, num_forwards, self.looked)
