"""Rows of one view whose blocks begin at different columns, with options of their own."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from plugins_under_test import view_with
from torch import Tensor

from samplers import View
from samplers.logits.noise import row_keys
from samplers.testing import logits_of
from samplers.view import Scope

SCOPES: tuple[Scope, ...] = ("block", "suffix", "answer")
# A window that begins in the prompt, inside the answer, at its beginning, and one in which the
# answer ends; by row the window's first position, the answer's length and the temperature.
STARTS, GEN_LENGTHS = torch.tensor([-3, 40, 0, 16]), torch.tensor([64, 96, 24, 20])
TEMPERATURES = torch.tensor([0.0, 0.7, 1.3, 0.0], dtype=torch.float64)
TOLD = (
    "tokens", "masked", "eligible", "positions", "in_answer", "after_answer", "progress",
    "num_left", "proposal", "confidence", "margin", "entropy",
)  # fmt: skip


def joined(block_starts: tuple[int, ...]) -> View:
    """Returns a view of four rows that differ in every option that a row may have."""
    generator = torch.Generator().manual_seed(1)
    columns, starts = torch.arange(10), torch.tensor(block_starts)[:, None]
    positions = STARTS[:, None] + columns
    masked = torch.rand(4, 10, generator=generator) < 0.7
    masked &= (positions >= 0) & (positions < GEN_LENGTHS[:, None]) & (columns >= starts)
    tokens = torch.where(masked, 11, torch.randint(0, 11, (4, 10), generator=generator))
    return view_with(
        logits_of("drifting", 1, 0, (4, 10, 12)), tokens=tokens, masked=masked,
        eligible=masked & (columns < starts + 4), start=STARTS, gen_length=GEN_LENGTHS,
        num_committed=torch.tensor([4, 41, 2, 15]), temperature=TEMPERATURES, block_length=4,
        noise_keys=row_keys(1, torch.arange(4)), block_start=starts[:, 0],
    )  # fmt: skip


def alone(view: View, row: int) -> View:
    """Returns one row of a view as a view whose options are numbers."""
    part = view.take(torch.tensor([row]))
    names = ("start", "gen_length", "temperature", "block_start")
    numbers: dict[str, Any] = {name: getattr(part, name).item() for name in names}
    return replace(part, **numbers)


@pytest.mark.parametrize("block_starts", [(3, 0, 2, 6), (0, 4, 7, 9), (2, 2, 2, 2)])
@pytest.mark.parametrize("scope", SCOPES)
def test_the_part_of_a_scope_is_that_of_the_row_alone_and_is_put_back_where_it_was(
    block_starts: tuple[int, ...], scope: Scope
) -> None:
    """With the second starts, blocks reach beyond the window."""
    view = joined(block_starts)
    part = view.within(scope)
    assert part.tokens.shape[1] == (4 if scope == "block" else 10)
    for row, start in enumerate(block_starts):
        single = alone(view, row).within(scope)
        width = single.tokens.shape[1]
        assert width == {"block": 4, "suffix": 10 - start, "answer": 10}[scope]
        for name in TOLD:
            value: Tensor = getattr(part, name)[row]
            torch.testing.assert_close(
                value[:width] if value.ndim else value, getattr(single, name)[0], rtol=0, atol=0
            )
        first = 0 if scope == "answer" else start
        inside = min(10 - first, width)
        assert torch.equal(part.masked[row, :inside], view.masked[row, first : first + inside])
        # Columns beyond the window are settled.
        assert not (part.masked | part.eligible)[row, inside:].any()
        assert part.positions[row, 0] == STARTS[row] + first
        widened = torch.zeros(10, dtype=torch.long)
        widened[first : first + inside] = view.tokens[row, first : first + inside] + 1
        assert torch.equal(view.widened(part.tokens + 1, scope)[row], widened)
    assert torch.equal(view.widened(part.eligible, scope), view.eligible)
