"""How the columns of a forward are laid out: which are computed, wanted and seen.

A forward in which row 1 opens a block (8 columns) while rows 0 and 2 are inside one (4 columns):

    group 0    rows 0, 2     row 0   [A A A A]              linear layers run over all columns of
                             row 2   [A A A A]              all groups at once, attention runs
    group 1    row 1         row 1   [p p s s A A A A]      group by group
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dllm_decode.core.canvas import Window
from dllm_decode.core.columns import Columns, count
from dllm_decode.sizes import round_up

# Numbers of columns that are not one range are rounded up to a multiple of this, so that few shapes
# occur: libraries keep scratch memory for each.
_STRIDE = 16


class Plan(NamedTuple):
    """What a forward computes of one row.

    Attributes:
        columns: To compute.
        end: First column that none of them sees.
        hidden: Columns that are neither computed nor seen.
    """

    columns: Columns
    end: int
    hidden: Columns = ()

    @property
    def first(self) -> int:
        """The first column to compute."""
        return self.columns[0].start

    @property
    def stop(self) -> int:
        """The first column after those to compute."""
        return self.columns[-1].stop

    @property
    def width(self) -> int:
        """How many columns the row has in a forward; the last one is repeated to fill them."""
        number = count(self.columns)
        return number if len(self.columns) == 1 else min(round_up(number, _STRIDE), self.end)


class Frame(NamedTuple):
    """One group of a forward: rows that compute equally many columns.

    Attributes:
        entries: Which rows, or states of rows, of the forward these are.
        places: The same on the device; `None`: all of them, in order.
        columns: The columns to compute; a slice if they are the same in all rows.
        positions: Rotary positions of these columns.
        wanted: For each column of the window the index, among the computed columns, of the one
            that predicts it.
        known: Where that column is computed; `None`: everywhere.
        attend: As `ForwardInputs.attend`.
        num_keys: Keys of the group, K.
        num_columns: Columns of each row, Q.
    """

    entries: tuple[int, ...]
    places: Int[Tensor, " N"] | None
    columns: slice | Int[Tensor, "N Q"]
    positions: Int[Tensor, "N Q"]
    wanted: Int[Tensor, "N W"]
    known: Bool[Tensor, "N W"] | None
    attend: Bool[Tensor, "N Q K"] | Bool[Tensor, "N 1 K"] | None
    num_keys: int
    num_columns: int


class Sight(NamedTuple):
    """How a model sees and predicts.

    Attributes:
        shift: Columns from a column to the one that its logits predict, 0 or 1.
        causal_block_length: As `MaskPredictor.causal_block_length`.
        with_kv_cache: Whether keys come from a cache, or from the computed columns alone.
        device: Where tensors are expected.
    """

    shift: int
    causal_block_length: int
    with_kv_cache: bool
    device: torch.device


def frames_of(sight: Sight, plans: Sequence[Plan], window: Window) -> tuple[Frame, ...]:
    """Lays out a forward.

    Args:
        sight: How the model sees and predicts.
        plans: What is computed of each row, or state of a row.
        window: The columns that are to be predicted, of the same rows.
    """
    groups = _groups(plans) if sight.with_kv_cache else [tuple(range(len(plans)))]
    return tuple(_frame(sight, plans, window, group, len(groups) == 1) for group in groups)


def _groups(plans: Sequence[Plan]) -> list[tuple[int, ...]]:
    """Puts rows of equal width together, the narrowest first."""
    widths = sorted({plan.width for plan in plans})
    return [tuple(n for n, plan in enumerate(plans) if plan.width == width) for width in widths]


def _frame(
    sight: Sight, plans: Sequence[Plan], window: Window, group: tuple[int, ...], is_only: bool
) -> Frame:
    own = [plans[entry] for entry in group]
    starts = [window.starts[entry] for entry in group]
    columns = _columns(sight, own)
    num_keys = max(plan.end for plan in own)
    if isinstance(columns, slice):
        listed = torch.arange(columns.start, columns.stop, device=sight.device)
        positions = listed.expand(len(group), -1)
    else:
        positions = columns
    wanted, known = _wanted(sight, own, starts, window.width, columns)
    return Frame(
        entries=group,
        places=None if is_only else torch.tensor(group, device=sight.device),
        columns=columns,
        positions=positions,
        wanted=wanted,
        known=known,
        attend=_attend(sight, own, positions, num_keys),
        num_keys=num_keys,
        num_columns=positions.shape[1],
    )


def _columns(sight: Sight, plans: Sequence[Plan]) -> slice | Int[Tensor, "N Q"]:
    """Returns the columns to compute; a row with fewer than another repeats its last one."""
    if not sight.with_kv_cache:
        # Every column of every row: a shorter row computes what is nobody's, which no one sees.
        return slice(0, max(plan.end for plan in plans))
    first = plans[0].columns
    if len(first) == 1 and all(plan.columns == first for plan in plans):
        return slice(first[0].start, first[0].stop)
    width = max(plan.width for plan in plans)
    if all(len(plan.columns) == 1 for plan in plans):
        bounds = torch.tensor([(plan.first, plan.stop - 1) for plan in plans], device=sight.device)
        listed = bounds[:, :1] + torch.arange(width, device=sight.device)
        return torch.minimum(listed, bounds[:, 1:])
    lists = [[column for part in plan.columns for column in part] for plan in plans]
    lists = [[*found, *[found[-1]] * (width - len(found))] for found in lists]
    return torch.tensor(lists, device=sight.device)


def _wanted(
    sight: Sight,
    plans: Sequence[Plan],
    starts: Sequence[int],
    width: int,
    columns: slice | Int[Tensor, "N Q"],
) -> tuple[Int[Tensor, "N W"], Bool[Tensor, "N W"] | None]:
    """Returns where the columns are that predict the window, and which of them are computed."""
    offsets = torch.arange(width, device=sight.device) - sight.shift
    if len(set(starts)) == 1:
        predictors = (offsets + starts[0]).repeat(len(plans), 1)
    else:
        predictors = torch.tensor(starts, device=sight.device)[:, None] + offsets
    # No column predicts column 0 of a shifted model; its own logits take their place.
    predictors = predictors.clamp(min=0)
    if isinstance(columns, slice):
        first, num_columns = columns.start, columns.stop - columns.start
        wanted = (predictors - first).clamp(0, num_columns - 1)
        if first <= max(0, min(starts) - sight.shift) and _reaches(plans, starts, width, sight):
            return wanted, None
        return wanted, wanted + first == predictors
    wanted = torch.searchsorted(columns.contiguous(), predictors.contiguous())
    wanted = wanted.clamp(max=columns.shape[1] - 1)
    covers = all(
        len(plan.columns) == 1 and plan.first <= max(0, start - sight.shift)
        for plan, start in zip(plans, starts, strict=True)
    )
    if covers and _reaches(plans, starts, width, sight):
        return wanted, None
    return wanted, columns.gather(1, wanted) == predictors


def _reaches(plans: Sequence[Plan], starts: Sequence[int], width: int, sight: Sight) -> bool:
    """Returns whether what is computed reaches to the windows' ends, or to the rows' own."""
    return all(
        min(start + width, plan.end) - sight.shift <= plan.stop
        for plan, start in zip(plans, starts, strict=True)
    )


def _attend(
    sight: Sight, plans: Sequence[Plan], positions: Int[Tensor, "N Q"], num_keys: int
) -> Bool[Tensor, "N Q K"] | Bool[Tensor, "N 1 K"] | None:
    """Returns the mask of a group; `None`: every column sees every key."""
    length = sight.causal_block_length
    ends = [plan.end for plan in plans]
    first, last = min(plan.first for plan in plans), num_keys - 1
    seen: Tensor | None = None
    if length and first // length != last // length:
        seen = attention_mask(positions, num_keys, length)
    # The rule of blocks implies the end of a row, unless the end is inside a block.
    if min(ends) != num_keys and (not length or any(end % length for end in ends)):
        keys = torch.arange(num_keys, device=sight.device)
        inside = (keys < torch.tensor(ends, device=sight.device)[:, None])[:, None]
        seen = inside if seen is None else seen & inside
    hidden = [_hull(plan.hidden) for plan in plans]
    if any(start < stop for start, stop in hidden):
        keys = torch.arange(num_keys, device=sight.device)
        bounds = torch.tensor(hidden, device=sight.device)
        shown = ((keys < bounds[:, :1]) | (keys >= bounds[:, 1:]))[:, None]
        seen = shown if seen is None else seen & shown
    return seen


def _hull(parts: Columns) -> tuple[int, int]:
    assert len(parts) <= 1, "A policy hides one range at most."
    return (parts[0].start, parts[0].stop) if parts else (0, 0)


def attention_mask(
    positions: Int[Tensor, "N Q"], num_keys: int, block_length: int
) -> Bool[Tensor, "N Q K"]:
    """Returns which keys each column of a block-causal model sees: its own block and those before.

    Args:
        positions: Columns, counted from the row's first token.
        num_keys: Keys, from column 0 on.
        block_length: Tokens per block.
    """
    keys = torch.arange(num_keys, device=positions.device) // block_length
    return keys <= (positions // block_length)[..., None]
