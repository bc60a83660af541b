"""The commits of the rows of a state so far."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from dllm_decode.core.commits import Commits
from dllm_decode.core.passes import part_of
from dllm_decode.core.window import Window
from samplers.logits.float64 import widest
from samplers.logits.statistics import log_probability, logprob_temperature
from samplers.state import pad_state
from samplers.view import View


def log_probabilities(
    view: View, tokens: Int[Tensor, "B W"]
) -> tuple[Float[Tensor, "B W"], Float[Tensor, "B W"]]:
    """Returns `logprobs` and `model_logprobs` of tokens, see `Commits`; 0 without logits."""
    summary = view.summary
    offsets = summary.offsets
    computed_tokens = part_of(tokens, offsets)
    drawn = log_probability(summary.logits, computed_tokens, logprob_temperature(view.temperature))
    in_model = log_probability(summary.model_logits, computed_tokens, 1.0)
    if offsets is None:
        return drawn, in_model
    # Nothing is committed where no logits were computed.
    zeros = drawn.new_zeros(tokens.shape)
    return zeros.scatter(1, offsets, drawn), zeros.scatter(1, offsets, in_model)


class CommitState(NamedTuple):
    """The commits of some rows so far, by column of the canvas.

    Attributes:
        num_steps: Steps that each row has taken.
        steps: Step that committed the token, from 1; 0: none.
        logprobs: As in `Commits`; arbitrary where `steps` is 0.
        model_logprobs: As in `Commits`; arbitrary where `steps` is 0.
    """

    num_steps: Int[Tensor, " B"]
    steps: Int[Tensor, "B L"]
    logprobs: Float[Tensor, "B L"]
    model_logprobs: Float[Tensor, "B L"]

    @staticmethod
    def joined(
        held: "CommitState | None", num_rows: int, like: Int[Tensor, "B L"]
    ) -> "CommitState":
        """Returns the state with further rows, before their first step.

        Args:
            held: The state of the rows so far; `None`: there are none.
            num_rows: Number of further rows.
            like: Tokens of all rows.
        """
        if held is None:
            zeros = torch.zeros_like(like)
            zero_logprobs = zeros.to(widest(like.device))
            return CommitState(zeros[:, 0], zeros, zero_logprobs, zero_logprobs)
        # A longer row that has joined may have widened the canvas.
        padding = (0, like.shape[1] - held.steps.shape[1])
        num_steps, *wide = held
        return pad_state(CommitState(num_steps, *(pad(part, padding) for part in wide)), num_rows)

    def after(
        self,
        window: Window,
        view: View,
        tokens: Int[Tensor, "B W"],
        commit: Bool[Tensor, "B W"],
        changed: Bool[Tensor, "B L"],
    ) -> "CommitState":
        """Returns the state after a step of all rows.

        Args:
            window: The columns of the view.
            view: The view on which the step was decided.
            tokens: Tokens of the view's columns after the step.
            commit: Columns of the view whose token the step has committed.
            changed: Columns of the canvas whose token the step changed.
        """
        num_steps = self.num_steps + 1
        drawn, in_model = log_probabilities(view, tokens)
        new_parts = (num_steps[:, None].expand_as(tokens), drawn, in_model)
        old_parts = (self.steps.masked_fill(changed, 0), self.logprobs, self.model_logprobs)
        pairs = zip(old_parts, new_parts, strict=True)
        return CommitState(
            num_steps, *(window.put(old, commit, new.to(old.dtype)) for old, new in pairs)
        )

    def of_answer(self, row: int, start: int, stop: int) -> Commits:
        """Returns the commits of one row in the columns of its answer."""
        steps, *logprobs = (part[row : row + 1, start:stop].cpu() for part in self[1:])
        return Commits(steps - 1, *(part.masked_fill(steps == 0, torch.nan) for part in logprobs))
