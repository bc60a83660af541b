"""Drafts of a forward: room for them in the cache, and several states of a row as its columns."""

from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from dllm_decode.core.layout import Group, Layout
from dllm_decode.core.passes import Drafts
from dllm_decode.core.state import State
from dllm_decode.guards import require_drafts
from dllm_decode.inputs import cache_rows
from dllm_decode.models.base import ForwardInputs


def with_room(state: State, drafts: Drafts, layout: Layout) -> State:
    """Returns the state whose cache has room for drafts, and a copy of the row's slots for each."""
    cache = state.cache.kv_cache
    require_drafts(state, drafts)
    if cache is None:
        return state
    if drafts.in_columns:
        more = max(drafts.branches) * max(group.positions.shape[1] for group in layout.groups)
        if cache.num_slots < state.cache.num_slots + more:
            cache = cache.widened(state.cache.num_slots + more)
        return state._replace(cache=state.cache._replace(kv_cache=cache))
    pairs = [
        (row, row + branch * state.cache.capacity)
        for row, branch in zip(drafts.rows, drafts.branches, strict=True)
        if branch
    ]
    if pairs:
        rows, copies = torch.tensor(pairs, device=state.device).unbind(-1)
        for buffer in cache.buffers:
            buffer[:, copies.to(buffer.device)] = buffer[:, rows.to(buffer.device)]
    return state


class Packed(NamedTuple):
    """Where each state of a group is in the forward.

    Attributes:
        rows: The row of each state.
        branches: The branch of each state within its row.
        num_rows: Rows of the forward.
        depth: Branches of a row, at most.
    """

    rows: Int[Tensor, " N"]
    branches: Int[Tensor, " N"]
    num_rows: int
    depth: int


def packed_of(
    state: State, drafts: Drafts, group: Group, inputs: ForwardInputs
) -> tuple[ForwardInputs, Packed]:
    """Makes all states of a row one row of the forward."""
    device = inputs.tokens.device
    owners = list(dict.fromkeys(drafts.rows[entry] for entry in group.entries))
    numbers = [owners.index(drafts.rows[entry]) for entry in group.entries]
    branches = [drafts.branches[entry] for entry in group.entries]
    where = Packed(
        torch.tensor(numbers, device=device),
        torch.tensor(branches, device=device),
        len(owners),
        max(branches) + 1,
    )
    causal: Tensor | None = None
    if drafts.causal_from is not None:
        listed = [drafts.causal_from[entry] for entry in group.entries]
        causal = torch.tensor(listed, device=device)
    cache, width = state.cache, inputs.tokens.shape[1]
    if cache.kv_cache is None:
        return _pack(inputs, where, (width, width), causal), where
    inputs = replace(inputs, slots=inputs.positions)
    packed = _pack(inputs, where, (group.num_keys, cache.num_slots), causal)
    slots = cache.kv_cache.first(cache.num_slots + (where.depth - 1) * width)
    rows_of = cache_rows(state, owners, [0] * len(owners))
    return replace(packed, kv_cache=slots, rows=rows_of), where


def _pack(
    inputs: ForwardInputs,
    where: Packed,
    keys: tuple[int, int],
    causal_from: Int[Tensor, " N"] | None,
) -> ForwardInputs:
    """Makes the states of a row, which are rows of `inputs`, columns of one row.

    Branch 0 reads and writes exactly the slots that it would if it were the only state. Every other
    branch sees its own columns instead of the row's slots of these columns, and the row's other
    slots; its keys and values are written after the row's own. No other branch sees them.

    Args:
        inputs: A forward with one state a row; if it has slots, they are per row.
        where: Where each state is in the result.
        keys: Keys of the forward, K, without a cache its columns; and the first slot after the
            row's own ones.
        causal_from: As `Drafts.causal_from`.
    """
    rows, branches, num_rows, depth = where
    tokens, (num_keys, first_free) = inputs.tokens, keys
    width, device = tokens.shape[1], tokens.device
    columns = torch.arange(width, device=device)
    free = first_free + width * torch.arange(-1, depth - 1, device=device)
    slots = (free[:, None] + columns).repeat(num_rows, 1, 1)
    shared = inputs.slots if isinstance(inputs.slots, Tensor) else columns.expand_as(tokens)
    own = torch.where(branches[:, None] == 0, shared, slots[rows, branches])
    # Rows with fewer states than others compute columns that are never read.
    slots[rows, branches] = own
    attend = tokens.new_zeros((*tokens.shape, first_free + (depth - 1) * width), dtype=torch.bool)
    attend[..., :num_keys] = True if inputs.attend is None else inputs.attend
    there = shared[:, None].expand(-1, width, -1)
    seen, is_further = attend.gather(2, there), (branches > 0)[:, None, None]
    first, own_seen = seen & ~is_further, seen
    if causal_from is not None:
        late, gap = shared >= causal_from[:, None], shared[:, :, None] - there
        first = seen & torch.where(late[:, None], gap >= is_further.long(), ~is_further)
        own_seen = seen & (~late[:, None] | (gap == 0))
    attend = attend.scatter(2, there, first)
    # A row with fewer columns than another repeats its last one. In branch 0 the copies share one
    # slot; in other branches each has a slot, of which only the first may be seen.
    repeated = torch.zeros_like(shared, dtype=torch.bool)
    repeated[:, 1:] = shared[:, 1:] == shared[:, :-1]
    own_seen = own_seen & ~repeated[:, None]
    # A further branch sees its own columns, and those of no other but branch 0.
    own_branch = torch.eye(depth, dtype=torch.bool, device=device)[branches, 1:]
    attend[..., first_free:] = (own_branch[:, None, :, None] & own_seen[:, :, None]).flatten(2)
    return replace(
        inputs,
        tokens=_laid(tokens, where),
        positions=_laid(inputs.positions, where),
        wanted=_laid(inputs.wanted + width * branches[:, None], where),
        attend=_laid(attend, where),
        slots=None if inputs.slots is None else slots.flatten(1, 2),
    )


def unpack(packed: Float[Tensor, "B X V"], where: Packed) -> Float[Tensor, "N W V"]:
    """Returns the logits of each state, from the logits of a packed forward."""
    states: Tensor = packed.unflatten(1, (where.depth, -1))
    if len(states) == 1:
        # Branch by branch already, so that nothing has to be copied.
        return states[0]
    return states[where.rows, where.branches]


def _laid(parts: Shaped[Tensor, "N X ..."], where: Packed) -> Shaped[Tensor, "B Y ..."]:
    laid = parts.new_zeros(where.num_rows, where.depth, *parts.shape[1:])
    laid[where.rows, where.branches] = parts
    return laid.flatten(1, 2)
