"""The rows of a state whose answers must be in a set of texts, and how far they were read."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from dllm_decode.core.automaton import Automata
from dllm_decode.core.canvas import Canvas
from dllm_decode.core.rows import Row
from dllm_decode.core.sending import send


class ConstrainedRows(NamedTuple):
    """The automata of the rows that have one, in order, and their states.

    The settled tokens at the beginning of an answer are read once. They never change, because only
    samplers of final tokens decode rows with a constraint.

    Attributes:
        rows: The rows.
        starts: First column of each row that was not read.
        rows_on_device: `rows` on the device.
        starts_on_device: `starts` on the device.
        states: State of each automaton before that column.
        automata: The automata.
    """

    rows: tuple[int, ...]
    starts: tuple[int, ...]
    rows_on_device: Int[Tensor, " N"]
    starts_on_device: Int[Tensor, " N"]
    states: Int[Tensor, " N"]
    automata: Automata

    @staticmethod
    def of(rows: Sequence[Row], device: torch.device) -> "ConstrainedRows | None":
        """Returns the constraints of a state's rows, nothing read; `None` if no row has one."""
        pairs = [(n, row) for n, row in enumerate(rows) if row.request.constraint is not None]
        if not pairs:
            return None
        automata = [
            row.request.constraint for _, row in pairs if row.request.constraint is not None
        ]
        numbers = tuple(n for n, _ in pairs)
        starts = tuple(row.prompt_length for _, row in pairs)
        index, columns = send([numbers, starts], device).unbind(0)
        states = torch.zeros_like(index)
        return ConstrainedRows(
            numbers, starts, index, columns, states, Automata.of(automata, device)
        )

    def read_settled(self, rows: Sequence[Row], canvas: Canvas) -> "ConstrainedRows":
        """Returns the constraints after the tokens before the first unsettled column of each row.

        Args:
            rows: All rows of the state.
            canvas: The canvas of these rows.
        """
        constrained = [rows[number] for number in self.rows]
        starts = tuple(min(row.first_unsettled, row.answer_end) for row in constrained)
        if starts == self.starts:
            return self
        ends = canvas.prompt_lengths + canvas.gen_lengths
        all_columns = torch.arange(canvas.width, device=ends.device)
        first = torch.where(canvas.unsettled, all_columns, canvas.width).amin(-1).minimum(ends)
        first, tokens = first[self.rows_on_device], canvas.tokens[self.rows_on_device]
        columns, states = self.starts_on_device, self.states
        for _ in range(max(map(int.__sub__, starts, self.starts))):
            is_next = columns < first
            at = columns.clamp(max=canvas.width - 1)
            next_states = self.automata.after(states, tokens.gather(1, at[:, None]).squeeze(1))
            states, columns = torch.where(is_next, next_states, states), columns + is_next
        return self._replace(starts=starts, starts_on_device=columns, states=states)

    def take(self, rows: Sequence[int]) -> "ConstrainedRows | None":
        """Returns the constraints of some rows, numbered as listed; `None` if there are none."""
        places = {row: place for place, row in enumerate(self.rows)}
        pairs = [(n, places[row]) for n, row in enumerate(rows) if row in places]
        if not pairs:
            return None
        numbers, selected = zip(*pairs, strict=True)
        index, kept = send([numbers, selected], self.rows_on_device.device).unbind(0)
        starts = tuple(self.starts[place] for place in selected)
        return ConstrainedRows(
            numbers,
            starts,
            index,
            self.starts_on_device[kept],
            self.states[kept],
            self.automata.take(kept),
        )
