"""Observers: functions that are called with the event of each step."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dllm_decode.core.canvas import Canvas
from dllm_decode.core.rows import Row
from samplers.view import View


@dataclass(frozen=True)
class StepEvent:
    """One step of some rows, as observers see it.

    Columns and positions are those of each row, see `Canvas`: `before` and `after` are indexed by
    column, `view.positions` says which position of the answer each column of the view is.

    Attributes:
        before: The rows that took the step.
        after: Those rows after the step; the rest of an answer that has ended holds EOS.
        eos_filled: Columns of `after` in which the engine, not the decision, wrote an EOS.
        view: The view on which the step was decided. A verifier that looks ahead takes several
            steps on one forward, each with a view of its own.
        rows: Those rows after the step, as the host knows them.
        ended: Rows whose answer has ended in this step.
        is_final: True if a settled token never changes.
        decode_number: A number that all steps of one call of `decode` or `decode_many` have.
        request_indices: The index of each row's request.
        forwards: Forwards so far in this decode, this step's included.
        query_positions: Columns computed so far for each of these rows.
        drafted: Tokens that a verifier has drafted for each of these rows so far.
        accepted: Drafted tokens that were verified and kept.
    """

    before: Canvas
    after: Canvas
    eos_filled: Bool[Tensor, "B L"]
    view: View
    rows: tuple[Row, ...]
    ended: Bool[Tensor, " B"]
    is_final: bool
    decode_number: int
    request_indices: Int[Tensor, " B"]
    forwards: int
    query_positions: Int[Tensor, " B"]
    drafted: Int[Tensor, " B"]
    accepted: Int[Tensor, " B"]

    @property
    def columns(self) -> Int[Tensor, "B W"]:
        """Columns of the view in `before` and `after`, at most their last column."""
        columns = self.view.positions + self.before.prompt_lengths[:, None]
        return columns.clamp(max=self.before.width - 1)

    @cached_property
    def forced(self) -> Bool[Tensor, "B L"] | None:
        """Columns of `after` in which a constraint forced a token against the row's own choice.

        `None`: no row has a constraint. It is computed on first use.
        """
        view, columns = self.view, self.columns
        if view.forced_tokens is None:
            return None
        before, after, filled = (
            part.gather(1, columns)
            for part in (self.before.tokens, self.after.tokens, self.eos_filled)
        )
        own_choice = replace(view, forced_tokens=None).proposal
        is_forced = (view.forced_tokens == after) & (after != own_choice)
        is_forced &= (before != after) & ~filled & view.in_answer
        # Columns of the view after the canvas' last column are clamped to that column.
        zeros = torch.zeros_like(self.eos_filled, dtype=torch.int)
        return zeros.scatter_reduce(1, columns, is_forced.int(), "amax").bool()

    def index_of(self, request: int) -> Int[Tensor, " 1"] | None:
        """Returns which of the rows belongs to a request; `None` if that row took no step."""
        index = (self.request_indices == request).nonzero().flatten()
        return index if len(index) else None


Observer: TypeAlias = Callable[[StepEvent], None]
