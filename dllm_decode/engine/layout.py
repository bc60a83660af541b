"""Lays out the columns of a forward: which are computed, predict the window, and see each other.

A forward in which row 1 opens a block (8 columns) while rows 0 and 2 are inside one (4 columns):

    group 0    rows 0, 2     row 0   [A A A A]              linear layers run over all columns of
                             row 2   [A A A A]              all groups at once, attention runs
    group 1    row 1         row 1   [p p s s A A A A]      group by group
"""

from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from dllm_decode.core.columns import Columns, num_columns
from dllm_decode.core.sending import send
from dllm_decode.core.sizes import COLUMN_STRIDE, round_up
from dllm_decode.core.window import Window


class Plan(NamedTuple):
    """The columns of one row in a forward.

    Attributes:
        columns: The columns to compute.
        end: First column that no computed column sees.
        first_needed: First column that predicts the open block.
        hidden: Columns that are neither computed nor seen.
        round_to: The number of columns is rounded up to a multiple of this, unless they are one
            range: whole blocks of a model that computes nothing else are not filled up.
    """

    columns: Columns
    end: int
    first_needed: int
    hidden: Columns = ()
    round_to: int = COLUMN_STRIDE

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
        """Columns of the row in a forward; the last one is repeated to fill up."""
        number = num_columns(self.columns)
        return number if len(self.columns) == 1 else min(round_up(number, self.round_to), self.end)


class Sight(NamedTuple):
    """How a model sees and predicts.

    Attributes:
        shift: Columns from a column to the column that its logits predict, 0 or 1.
        causal_block_length: As `MaskPredictor.causal_block_length`.
        sees_later_blocks: True if a column sees the masks of later blocks.
        with_kv_cache: True if keys come from a cache, False if from the computed columns alone.
        device: Device of the model's inputs.
        routing_block_length: As `RoutesByBlock.routing_block_length`; 1 for other models.
    """

    shift: int
    causal_block_length: int
    sees_later_blocks: bool
    with_kv_cache: bool
    device: torch.device
    routing_block_length: int = 1


class Group(NamedTuple):
    """The branches of a forward that compute equally many columns.

    Attributes:
        members: Indices of the branches.
        indices: The members, to index a tensor with.
        columns: The columns to compute, which are their rotary positions.
        slots: `columns` as slots of a cache; a slice if all members compute the same columns.
        predictors: For each column of the window, which of the computed columns predicts it.
        predicted: True where the column that predicts is computed; `None`: everywhere.
        attend: As `ForwardInputs.attend`.
        num_keys: Keys of the group, K.
    """

    members: tuple[int, ...]
    indices: slice | Int[Tensor, " N"]
    columns: Int[Tensor, "N Q"]
    slots: slice | Int[Tensor, "N Q"]
    predictors: Int[Tensor, "N W"]
    predicted: Bool[Tensor, "N W"] | None
    attend: Bool[Tensor, "N Q K"] | Bool[Tensor, "N 1 K"] | None
    num_keys: int

    def part(self, values: Shaped[Tensor, "B ..."]) -> Shaped[Tensor, "N ..."]:
        """Returns the members' part of values of every branch."""
        return values if isinstance(self.indices, slice) else values[self.indices]


LayoutKey: TypeAlias = tuple[tuple[tuple[Columns, int, Columns], ...], tuple[int, ...], int]
"""All that a layout depends on: columns of each branch, and starts and width of the window."""


class Layout(NamedTuple):
    """The layout of a forward. Two forwards with the same key have the same layout.

    Attributes:
        key: All that the layout depends on.
        window: The columns to predict, for each branch.
        groups: The branches by width.
        order: Puts the results of all groups in the order of the branches.
    """

    key: LayoutKey
    window: Window
    groups: tuple[Group, ...]
    order: slice | Int[Tensor, " N"]

    @staticmethod
    def key_of(plans: Sequence[Plan], starts: tuple[int, ...], width: int) -> LayoutKey:
        """Returns the key of a forward.

        Args:
            plans: The columns of each branch.
            starts: First column of the window, for each branch.
            width: Columns of the window.
        """
        return tuple((plan.columns, plan.end, plan.hidden) for plan in plans), starts, width

    @staticmethod
    def of(key: LayoutKey, sight: Sight, plans: Sequence[Plan], window: Window) -> "Layout":
        """Lays out a forward.

        Args:
            key: The layout's key.
            sight: How the model sees and predicts.
            plans: The columns of each branch.
            window: The columns to predict, for each branch.
        """
        all_members = tuple(range(len(plans)))
        widths = sorted({plan.width for plan in plans}) if sight.with_kv_cache else []
        if len(widths) <= 1:
            everything = slice(None)
            group = _group(sight, plans, window, all_members, everything)
            return Layout(key, window, (group,), everything)
        groups, parts = [], []
        for width in widths:
            members = tuple(n for n, plan in enumerate(plans) if plan.width == width)
            parts.append(send(members, sight.device))
            groups.append(_group(sight, plans, window, members, parts[-1]))
        return Layout(key, window, tuple(groups), torch.cat(parts).argsort())

    def merge(self, parts: Sequence[Shaped[Tensor, "..."]]) -> Shaped[Tensor, "..."]:
        """Joins the results of the groups, in the order of the branches."""
        return parts[0] if len(parts) == 1 else torch.cat(list(parts))[self.order]

    def predicted(self) -> Bool[Tensor, "N W"] | None:
        """Returns where a computed column predicts the window; `None`: everywhere."""
        if all(group.predicted is None for group in self.groups):
            return None
        parts = []
        for group in self.groups:
            all_true = torch.ones_like(group.predictors, dtype=torch.bool)
            parts.append(all_true if group.predicted is None else group.predicted)
        return self.merge(parts)


def _group(
    sight: Sight,
    plans: Sequence[Plan],
    window: Window,
    members: tuple[int, ...],
    indices: slice | Int[Tensor, " N"],
) -> Group:
    """Returns the group of some branches, of which all compute equally many columns."""
    member_plans = [plans[member] for member in members]
    starts = [window.starts[member] for member in members]
    slots = _slots(sight, member_plans)
    num_keys = max(plan.end for plan in member_plans)
    if isinstance(slots, slice):
        computed = torch.arange(slots.start, slots.stop, device=sight.device)
        columns = computed.expand(len(members), -1)
    else:
        columns = slots
    predictors, predicted = _predictors(sight, member_plans, starts, window.width, slots)
    return Group(
        members=members,
        indices=indices,
        columns=columns,
        slots=slots,
        predictors=predictors,
        predicted=predicted,
        attend=_attend(sight, member_plans, columns, num_keys),
        num_keys=num_keys,
    )


def _slots(sight: Sight, plans: Sequence[Plan]) -> slice | Int[Tensor, "N Q"]:
    """Returns the columns to compute, as slots; a row with fewer columns repeats its last one."""
    if not sight.with_kv_cache:
        # All columns. A shorter row also computes columns after its end; its other columns do not
        # see them.
        return slice(0, max(plan.end for plan in plans))
    first = plans[0].columns
    if len(first) == 1 and all(plan.columns == first for plan in plans):
        return slice(first[0].start, first[0].stop)
    width = max(plan.width for plan in plans)
    if all(len(plan.columns) == 1 for plan in plans):
        starts = send([plan.first for plan in plans], sight.device)
        return starts[:, None] + torch.arange(width, device=sight.device)
    lists = [[column for part in plan.columns for column in part] for plan in plans]
    lists = [[*columns, *[columns[-1]] * (width - len(columns))] for columns in lists]
    return send(lists, sight.device)


def _predictors(
    sight: Sight,
    plans: Sequence[Plan],
    starts: Sequence[int],
    width: int,
    slots: slice | Int[Tensor, "N Q"],
) -> tuple[Int[Tensor, "N W"], Bool[Tensor, "N W"] | None]:
    """Returns which computed columns predict the window, and where such a column is computed.

    With shift 1, the columns 2 to 6 computed, and a window of the columns 4 to 8:

        computed column    2  3  4  5  6
        its index          0  1  2  3  4
        window             4  5  6  7  8
        sources            3  4  5  6  7     column - shift
        predictors         1  2  3  4  4     its index; arbitrary where it is not computed
        predicted          x  x  x  x  -
    """
    offsets = torch.arange(width, device=sight.device) - sight.shift
    if len(set(starts)) == 1:
        sources = (offsets + starts[0]).repeat(len(plans), 1)
    else:
        sources = send(starts, sight.device)[:, None] + offsets
    # No column predicts column 0 of a shifted model; the logits of column 0 are used for it.
    sources = sources.clamp(min=0)
    if isinstance(slots, slice):
        first, num_columns = slots.start, slots.stop - slots.start
        predictors = (sources - first).clamp(0, num_columns - 1)
        predicted = None if _covers(sight, plans, starts, width) else predictors + first == sources
        return predictors, predicted
    predictors = torch.searchsorted(slots.contiguous(), sources.contiguous())
    predictors = predictors.clamp(max=slots.shape[1] - 1)
    is_one_range = all(len(plan.columns) == 1 for plan in plans)
    if is_one_range and _covers(sight, plans, starts, width):
        return predictors, None
    return predictors, slots.gather(1, predictors) == sources


def _covers(sight: Sight, plans: Sequence[Plan], starts: Sequence[int], width: int) -> bool:
    """Returns whether the computed columns, one range a row, predict the whole windows.

    A window may end after its row; columns after the row's end need no prediction.
    """
    return all(
        plan.first <= max(0, start - sight.shift)
        and min(start + width, plan.end) - sight.shift <= plan.stop
        for plan, start in zip(plans, starts, strict=True)
    )


def _attend(
    sight: Sight, plans: Sequence[Plan], columns: Int[Tensor, "N Q"], num_keys: int
) -> Bool[Tensor, "N Q K"] | Bool[Tensor, "N 1 K"] | None:
    """Returns the attention mask of a group; `None`: every column sees every key."""
    length = sight.causal_block_length
    ends = [plan.end for plan in plans]
    first = min(plan.first for plan in plans)
    last = num_keys - 1
    keys = torch.arange(num_keys, device=sight.device)
    masks = []
    if length and first // length != last // length:
        masks.append(block_causal_mask(columns, num_keys, length))
    # The rule of blocks implies the end of a row, unless the end is inside a block.
    if min(ends) != num_keys and (not length or any(end % length for end in ends)):
        masks.append((keys < _each(sight, ends))[:, None])
    if any(plan.hidden for plan in plans):
        # A policy hides one range at most.
        hidden = [plan.hidden[0] if plan.hidden else range(0) for plan in plans]
        starts, stops = zip(*((part.start, part.stop) for part in hidden), strict=True)
        masks.append(((keys < _each(sight, starts)) | (keys >= _each(sight, stops)))[:, None])
    return reduce(and_, masks) if masks else None


def _each(sight: Sight, numbers: Sequence[int]) -> Int[Tensor, "N 1"]:
    return send(numbers, sight.device)[:, None]


def block_causal_mask(
    columns: Int[Tensor, "N Q"], num_keys: int, block_length: int
) -> Bool[Tensor, "N Q K"]:
    """Returns which keys each column of a block-causal model sees: its own block and those before.

    Args:
        columns: Counted from the row's first token.
        num_keys: Keys, from column 0 on.
        block_length: Tokens per block.
    """
    keys = torch.arange(num_keys, device=columns.device) // block_length
    return keys <= (columns // block_length)[..., None]
