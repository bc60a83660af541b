"""Several branches of a row in one forward, as rows of the cache or as columns of one row.

Branches 0 and 1 of a row as columns of one row, each with the columns 2 and 3 to compute; `x`: the
column on the left sees the slot above. Slots 4 and 5 are free ones, for branch 1.

                         the row's slots   branch 1's
                           0  1  2  3        4  5
    branch 0, column 2     x  x  x  x
    branch 0, column 3     x  x  x  x
    branch 1, column 2     x  x              x  x
    branch 1, column 3     x  x              x  x

With `causal_from` 2, a column of branch 1 sees itself and the columns of branch 0 before it.

    branch 0, column 2     x  x  x
    branch 0, column 3     x  x  x  x
    branch 1, column 2     x  x              x
    branch 1, column 3     x  x  x              x
"""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from dllm_decode.core.model import ForwardInputs
from dllm_decode.core.passes import Branches
from dllm_decode.core.sending import send
from dllm_decode.engine.inputs import cache_rows
from dllm_decode.engine.layout import Group, Layout
from dllm_decode.engine.state import State


def with_room(state: State, branches: Branches, layout: Layout) -> State:
    """Returns the state whose cache has room for branches: slots, or copies of the row's slots."""
    cache = state.cache.kv_cache
    if cache is None:
        return state
    if branches.in_columns:
        num_further = max(branches.branch_numbers) * max(
            group.columns.shape[1] for group in layout.groups
        )
        if cache.num_slots < state.cache.num_slots + num_further:
            cache = cache.widened(state.cache.num_slots + num_further)
        return state._replace(cache=state.cache._replace(kv_cache=cache))
    pairs = [
        (row, row + branch * state.cache.capacity)
        for row, branch in zip(branches.rows, branches.branch_numbers, strict=True)
        if branch
    ]
    if pairs:
        rows, copies = send(pairs, state.device).unbind(-1)
        for buffer in cache.buffers:
            buffer[:, copies.to(buffer.device)] = buffer[:, rows.to(buffer.device)]
    return state


class Packing(NamedTuple):
    """Where each branch of a group is in a forward whose rows hold several branches.

    Attributes:
        rows: The row of the forward.
        branch_numbers: Which branch of its row it is.
        num_rows: Rows of the forward.
        num_branches: Branches of a row, at most.
    """

    rows: Int[Tensor, " N"]
    branch_numbers: Int[Tensor, " N"]
    num_rows: int
    num_branches: int

    def lay(self, parts: Shaped[Tensor, "N X ..."]) -> Shaped[Tensor, "B Y ..."]:
        """Lays out the values of all branches, branch after branch in each row."""
        laid = parts.new_zeros(self.num_rows, self.num_branches, *parts.shape[1:])
        laid[self.rows, self.branch_numbers] = parts
        return laid.flatten(1, 2)


def pack(
    state: State, branches: Branches, group: Group, inputs: ForwardInputs
) -> tuple[ForwardInputs, Packing]:
    """Turns the branches of each row, which are rows of `inputs`, into columns of one row.

    Branch 0 reads and writes exactly the slots that it would if it were the only one. Every other
    branch sees its own columns in place of the row's slots of these columns, and the row's other
    slots. Its keys and values are written after the row's slots; only this branch sees them.
    """
    device, cache, width = inputs.tokens.device, state.cache, inputs.tokens.shape[1]
    rows, branch_numbers = branches.rows_and_branches(group.members)
    owners = list(dict.fromkeys(rows))
    packing = Packing(
        send([owners.index(row) for row in rows], device),
        send(branch_numbers, device),
        len(owners),
        max(branch_numbers) + 1,
    )
    first_free, num_keys = width, width
    row_slots = torch.arange(width, device=device).expand_as(inputs.tokens)
    cache_inputs: dict[str, Any] = {}
    if cache.kv_cache is not None:
        first_free, num_keys, row_slots = cache.num_slots, group.num_keys, inputs.positions
        cache_inputs = {
            "slots": _slots(packing, row_slots, first_free),
            "kv_cache": cache.kv_cache.first(first_free + (packing.num_branches - 1) * width),
            "rows": cache_rows(state, owners, [0] * len(owners)),
        }
    # Without `causal_from`, attention is causal from a column on that no row has.
    causal_from = branches.causal_from or (state.canvas.width,) * len(branches.rows)
    causal = send([causal_from[member] for member in group.members], device)
    attend = inputs.tokens.new_zeros(*row_slots.shape, first_free, dtype=torch.bool)
    attend[..., :num_keys] = True if inputs.attend is None else inputs.attend
    packed_inputs = replace(
        inputs,
        tokens=packing.lay(inputs.tokens),
        positions=packing.lay(inputs.positions),
        wanted=packing.lay(inputs.wanted + width * packing.branch_numbers[:, None]),
        attend=packing.lay(_attend(packing, attend, row_slots, causal)),
        **cache_inputs,
    )
    return packed_inputs, packing


def _slots(packing: Packing, row_slots: Int[Tensor, "N X"], first_free: int) -> Int[Tensor, "B Y"]:
    """Returns the slots that are written: the row's by branch 0, free slots by the others."""
    width, device = row_slots.shape[1], row_slots.device
    free = first_free + width * torch.arange(-1, packing.num_branches - 1, device=device)
    slots = (free[:, None] + torch.arange(width, device=device)).repeat(packing.num_rows, 1, 1)
    # A row with fewer branches than another computes columns that are never read.
    is_first = (packing.branch_numbers == 0)[:, None]
    written = torch.where(is_first, row_slots, slots[packing.rows, packing.branch_numbers])
    slots[packing.rows, packing.branch_numbers] = written
    return slots.flatten(1, 2)


def _attend(
    packing: Packing,
    attend: Bool[Tensor, "N X K"],
    row_slots: Int[Tensor, "N X"],
    causal_from: Int[Tensor, " N"],
) -> Bool[Tensor, "N X L"]:
    """Returns which slots each column of a branch sees, see the picture of this module.

    Args:
        packing: Where each branch is.
        attend: Which of the row's slots each column would see if its branch were the only one.
        row_slots: The row's slots of the branch's columns.
        causal_from: Column of each branch from which on attention is causal.
    """
    key_slots = row_slots[:, None].expand(-1, row_slots.shape[1], -1)
    visible = attend.gather(2, key_slots)
    is_further = (packing.branch_numbers > 0)[:, None, None]
    causal = row_slots >= causal_from[:, None]
    gap = row_slots[:, :, None] - key_slots
    sees_row = visible & torch.where(causal[:, None], gap >= is_further.long(), ~is_further)
    sees_own = visible & (~causal[:, None] | (gap == 0))
    # A row with fewer columns than another repeats its last column. In branch 0 the copies share
    # one slot; in other branches each copy has a slot, and only the first may be visible.
    repeated = torch.zeros_like(row_slots, dtype=torch.bool)
    repeated[:, 1:] = row_slots[:, 1:] == row_slots[:, :-1]
    sees_own = sees_own & ~repeated[:, None]
    # A further branch sees its own columns and those of branch 0, but those of no other branch.
    identity = torch.eye(packing.num_branches, dtype=torch.bool, device=row_slots.device)
    one_hot = identity[packing.branch_numbers, 1:]
    further = (one_hot[:, None, :, None] & sees_own[:, :, None]).flatten(2)
    return torch.cat([attend.scatter(2, key_slots, sees_row), further], 2)


def unpack(logits: Float[Tensor, "B X V"], packing: Packing) -> Float[Tensor, "N W V"]:
    """Returns the logits of each branch, from the logits of a packed forward."""
    branches: Tensor = logits.unflatten(1, (packing.num_branches, -1))
    if len(branches) == 1 and packing.num_branches == len(packing.branch_numbers):
        # The columns are in the order of the branches already, so that no copy is needed.
        return branches[0]
    return branches[packing.rows, packing.branch_numbers]
