"""Asks a cache policy about a forward whose rows are at different places of their answers."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from dllm_decode.caches.base import CachePolicy, CacheQuery, Columns
from dllm_decode.canvas import Block
from samplers.checks import shown


class Pace(NamedTuple):
    """How far a row has come.

    Attributes:
        reach: Positions outside which the row has no open mask.
        step: The row's forwards since it opened or finished a block.
    """

    reach: Block
    step: int = 0


class Asked(NamedTuple):
    """A query of some rows, which are all at one pace.

    Attributes:
        query: Of these rows alone.
        places: Where they stand in the canvas of the forward; `None`: the query is of all rows.
        rows: Their numbers, `Canvas.rows`, as far as the host knows them.
    """

    query: CacheQuery
    places: Sequence[int] | None = None
    rows: Sequence[int] | None = None

    def part(self, columns: Columns) -> slice | Int[Tensor, "R Q"]:
        """Returns what is computed of these rows, of the columns of all."""
        if self.places is None or isinstance(columns, slice):
            return columns
        return columns[self.places]


class Answer(NamedTuple):
    """What a policy says of one forward.

    Attributes:
        columns: Computed columns, of all rows.
        hidden: Columns that are neither computed nor attended to: a slice for all rows, or, of
            each row, the first and the one behind the last; `None`: none.
    """

    columns: Columns
    hidden: slice | Int[Tensor, "B 2"] | None


class _Own(NamedTuple):
    """What a policy says of the rows of one pace."""

    columns: Columns
    hidden: slice | None


def ask(policy: CachePolicy, asked: Sequence[Asked]) -> Answer:
    """Asks for the rows of each pace, and puts the answers together.

    A row's columns are those that it would have alone. A row with fewer of them than another
    repeats its last one.

    Raises:
        RuntimeError: If the policy answers with anything but columns.
    """
    answers = [_answer_of(policy, one.query) for one in asked]
    first = answers[0]
    if all(_is_same(first, answer) for answer in answers):
        return Answer(*first)
    device = asked[0].query.canvas.tokens.device
    listed = [
        _listed(answer.columns, one.query) for one, answer in zip(asked, answers, strict=True)
    ]
    width = max(columns.shape[1] for columns in listed)
    num_rows = sum(len(columns) for columns in listed)
    merged = torch.empty(num_rows, width, dtype=torch.long, device=device)
    limits = torch.zeros(num_rows, 2, dtype=torch.long, device=device)
    for one, columns, answer in zip(asked, listed, answers, strict=True):
        fill = columns[:, -1:].expand(-1, width - columns.shape[1])
        merged[one.places] = torch.cat([columns, fill], dim=1)
        if answer.hidden is not None:
            limits[one.places, 0] = answer.hidden.start
            limits[one.places, 1] = answer.hidden.stop
    is_hidden = any(answer.hidden is not None for answer in answers)
    return Answer(merged, limits if is_hidden else None)


def _answer_of(policy: CachePolicy, query: CacheQuery) -> _Own:
    """Asks for the rows of one pace, and checks the answer as far as the host can."""
    columns, hidden = _columns_of(policy, query), policy.hidden(query)
    if policy.needs_kv_cache and None in query.previous:
        _require_filled(policy, query, columns, hidden)
    return _Own(columns, hidden)


def _columns_of(policy: CachePolicy, query: CacheQuery) -> Columns:
    """Returns what a policy computes; RuntimeError if that is of another kind."""
    returned: object = policy.recompute(query)
    if isinstance(returned, slice):
        return returned
    num_rows = len(query.canvas)
    if isinstance(returned, Tensor):
        is_integer = not (returned.is_floating_point() or returned.dtype is torch.bool)
        if is_integer and returned.ndim == 2 and len(returned) == num_rows:
            return returned
        # The shape says enough: showing the numbers would wait for the device.
        got = f"{returned.dtype} {tuple(returned.shape)}"
    else:
        got = shown(returned)
    raise RuntimeError(
        f"recompute of {policy!r} must return a slice of columns, or Int[B, Q] with a row for "
        f"each of {num_rows}, got {got}."
    )


def _require_filled(
    policy: CachePolicy, query: CacheQuery, columns: Columns, hidden: slice | None
) -> None:
    """Raises RuntimeError if a row's first forward leaves out a column that it attends to.

    Only the device knows which columns a tensor lists, so of these the number is compared.
    """
    wanted = query.end - (0 if hidden is None else len(range(*hidden.indices(query.end))))
    found = _width(columns, query.end)
    if found < wanted:
        raise RuntimeError(
            f"recompute of {policy!r} must return every column at a row's first forward, the "
            f"prompt's too: {wanted}, got {found}. The others would be attended to, and hold "
            "nothing."
        )


def _width(columns: Columns, end: int) -> int:
    return len(range(*columns.indices(end))) if isinstance(columns, slice) else columns.shape[1]


def _is_same(one: _Own, other: _Own) -> bool:
    """Says whether two answers are the same slices."""
    if not (isinstance(one.columns, slice) and isinstance(other.columns, slice)):
        return one is other
    return one.columns == other.columns and one.hidden == other.hidden


def _listed(columns: Columns, query: CacheQuery) -> Int[Tensor, "B Q"]:
    if not isinstance(columns, slice):
        return columns
    rows = query.canvas.rows
    return torch.arange(*columns.indices(query.end), device=rows.device).expand(len(rows), -1)
