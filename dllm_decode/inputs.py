"""The inputs of the model: tokens, rows of the cache, drafts as rows or columns, masked copies."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from dllm_decode.core.layout import Group, Layout
from dllm_decode.core.passes import Drafts, Pass
from dllm_decode.core.state import State
from dllm_decode.models.base import ForwardInputs


def inputs_of(state: State, spec: Pass, group: Group) -> ForwardInputs:
    """Returns the inputs of one group."""
    states, asked, columns = spec.states(state.canvas), spec.asked, group.columns
    tokens = states.tokens
    if spec.attend is not None:
        _require_attend(spec.attend, group)
    if group.on_device is not None:
        tokens = tokens[group.on_device]
        asked = None if asked is None else asked[group.on_device]
    tokens = tokens[:, columns] if isinstance(columns, slice) else tokens.gather(1, columns)
    inputs = ForwardInputs(
        tokens=tokens,
        positions=group.positions,
        wanted=part_of(group.predictors, asked),
        attend=group.attend if spec.attend is None else spec.attend,
    )
    cache = state.cache.kv_cache
    if cache is None:
        return inputs
    inputs = replace(inputs, kv_cache=cache.first(group.num_keys), slots=columns)
    if states.in_columns:
        return inputs
    rows = [states.rows[entry] for entry in group.entries]
    branches = [states.branches[entry] for entry in group.entries]
    return replace(inputs, rows=_cache_rows(state, rows, branches))


def _require_attend(attend: Bool[Tensor, "B Q K"], group: Group) -> None:
    """Raises RuntimeError unless a mask has an entry for each column and key of the forward."""
    if group.on_device is not None:
        raise RuntimeError(
            "attend of Pass must be None where rows compute different numbers of columns."
        )
    size = (*group.positions.shape, group.num_keys)
    if tuple(attend.shape) != size:
        raise RuntimeError(
            f"attend of Pass must have the shape (rows, columns, keys), {size}, got "
            f"{tuple(attend.shape)}."
        )


def _cache_rows(
    state: State, rows: Sequence[int], branches: Sequence[int]
) -> slice | Int[Tensor, " N"] | None:
    """Returns rows of the key-value cache: branch n of a row has the n-th copy of its slots.

    With a slice nothing is copied when the cache is read. `None` is all of the cache.
    """
    cache = state.cache
    found = [row + branch * cache.capacity for row, branch in zip(rows, branches, strict=True)]
    if found == list(range(cache.num_rows)):
        return None
    if found == list(range(found[0], found[0] + len(found))):
        return slice(found[0], found[0] + len(found))
    return torch.tensor(found, device=state.device)


def with_room(state: State, drafts: Drafts, layout: Layout) -> State:
    """Returns the state whose cache has room for drafts, and a copy of the row's slots for each."""
    cache = state.cache.kv_cache
    _require_drafts(state, drafts)
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


def _require_drafts(state: State, drafts: Drafts) -> None:
    """Raises RuntimeError unless drafts are whole canvases, in branches that the cache has."""
    if drafts.causal_from is not None and not drafts.in_columns:
        raise RuntimeError("causal_from of Drafts must be None unless in_columns is True.")
    size = (len(drafts.rows), state.canvas.width)
    if tuple(drafts.tokens.shape) != size:
        raise RuntimeError(
            f"tokens of Drafts must be whole canvases, {size[0]} of {size[1]} columns, got the "
            f"shape {tuple(drafts.tokens.shape)}."
        )
    most = max(1, state.cache.num_rows // max(1, state.cache.capacity))
    if state.cache.kv_cache is not None and not drafts.in_columns and max(drafts.branches) >= most:
        raise RuntimeError(
            f"branches of Drafts must be below num_branches of the verifier, {most}, got "
            f"{max(drafts.branches)}. Override num_branches, or use in_columns=True."
        )


class Packed(NamedTuple):
    """Where each state of a group is in the forward: its row, its branch, and branches per row."""

    rows: Int[Tensor, " N"]
    branches: Int[Tensor, " N"]
    depth: int


def packed_of(
    state: State, drafts: Drafts, group: Group, inputs: ForwardInputs
) -> tuple[ForwardInputs, Packed]:
    """Makes all states of a row one row of the forward."""
    device = inputs.tokens.device
    owners = list(dict.fromkeys(drafts.rows[entry] for entry in group.entries))
    numbers = [owners.index(drafts.rows[entry]) for entry in group.entries]
    branches = [drafts.branches[entry] for entry in group.entries]
    rows, depth = torch.tensor(numbers, device=device), max(branches) + 1
    where = Packed(rows, torch.tensor(branches, device=device), depth)
    cache, width = state.cache, inputs.tokens.shape[1]
    causal = drafts.causal_from
    packed = pack(
        inputs if cache.kv_cache is None else replace(inputs, slots=inputs.positions),
        rows,
        where.branches,
        size=(len(owners), depth),
        num_keys=width if cache.kv_cache is None else group.num_keys,
        first_free=width if cache.kv_cache is None else cache.num_slots,
        causal_from=None
        if causal is None
        else torch.tensor([causal[entry] for entry in group.entries], device=device),
    )
    if cache.kv_cache is None:
        return packed, where
    slots = cache.kv_cache.first(cache.num_slots + (depth - 1) * width)
    rows_of = _cache_rows(state, owners, [0] * len(owners))
    return replace(packed, kv_cache=slots, rows=rows_of), where


def part_of(
    values: Shaped[Tensor, "N W"], asked: Int[Tensor, "N n"] | None
) -> Shaped[Tensor, "N _"]:
    """Returns the asked columns of each row; all if none are named."""
    return values if asked is None else values.gather(1, asked)


def with_leave_one_out(inputs: ForwardInputs, mask_id: int) -> ForwardInputs:
    """Appends a masked copy of the wanted columns, which predicts each of them without seeing it.

    A copy has the rotary position of its original. It sees all columns but its original, and the
    copies of all columns of the row. Columns after the row's end may be wanted, because a window
    may end there; the copy of such a column is seen by itself alone. No original sees a copy.
    """
    copied, (rows, length) = inputs.wanted, inputs.tokens.shape
    width = copied.shape[1]
    copies = torch.arange(length, length + width, device=copied.device).expand(rows, -1)
    masks = torch.full_like(copied, mask_id)
    present = torch.ones_like(inputs.tokens, dtype=torch.bool)[:, None]
    present = present if inputs.attend is None else inputs.attend
    attend = present.new_zeros(rows, length + width, length + width)
    attend[:, :, :length] = present
    # Columns after the last one are wanted as that one, so that only its first copy counts.
    is_own = present[:, 0].expand(rows, length).gather(1, copied)
    is_own[:, 1:] &= copied[:, 1:] != copied[:, :-1]
    itself = torch.eye(width, dtype=torch.bool, device=copied.device)
    attend[:, length:, length:] = is_own[:, None] | itself
    attend[:, length:].scatter_(2, copied[..., None], False)
    return replace(
        inputs,
        tokens=torch.cat([inputs.tokens, masks], 1),
        positions=torch.cat([inputs.positions, inputs.positions.gather(1, copied)], 1),
        wanted=torch.cat([copied, copies], 1),
        attend=attend,
    )


def pack(
    inputs: ForwardInputs,
    rows: Int[Tensor, " N"],
    branches: Int[Tensor, " N"],
    *,
    size: tuple[int, int],
    num_keys: int,
    first_free: int,
    causal_from: Int[Tensor, " N"] | None = None,
) -> ForwardInputs:
    """Makes the states of a row, which are rows of `inputs`, columns of one row.

    Branch 0 reads and writes exactly the slots that it would if it were the only state. Every other
    branch sees its own columns instead of the row's slots of these columns, and the row's other
    slots; its keys and values are written after the row's own. No other branch sees them.

    Args:
        inputs: A forward with one state a row; if it has slots, they are per row.
        rows: Row of the result of each state.
        branches: Branch of each state within its row.
        size: Rows of the result, and most states of a row.
        num_keys: Keys of the forward, K; without a cache its columns.
        first_free: First slot after the row's own slots; at least `num_keys`.
        causal_from: As `Drafts.causal_from`.
    """
    tokens = inputs.tokens
    width, device = tokens.shape[1], tokens.device
    columns = torch.arange(width, device=device)
    free = first_free + width * torch.arange(-1, size[1] - 1, device=device)
    slots = (free[:, None] + columns).repeat(size[0], 1, 1)
    shared = inputs.slots if isinstance(inputs.slots, Tensor) else columns.expand_as(tokens)
    own = torch.where(branches[:, None] == 0, shared, slots[rows, branches])
    # Rows with fewer states than others compute columns that are never read.
    slots[rows, branches] = own
    attend = tokens.new_zeros((*tokens.shape, first_free + (size[1] - 1) * width), dtype=torch.bool)
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
    own_branch = torch.eye(size[1], dtype=torch.bool, device=device)[branches, 1:]
    attend[..., first_free:] = (own_branch[:, None, :, None] & own_seen[:, :, None]).flatten(2)
    return replace(
        inputs,
        tokens=_laid(tokens, rows, branches, size),
        positions=_laid(inputs.positions, rows, branches, size),
        wanted=_laid(inputs.wanted + width * branches[:, None], rows, branches, size),
        attend=_laid(attend, rows, branches, size),
        slots=None if inputs.slots is None else slots.flatten(1, 2),
    )


def unpack(
    packed: Float[Tensor, "B X V"], rows: Int[Tensor, " N"], branches: Int[Tensor, " N"], depth: int
) -> Float[Tensor, "N W V"]:
    """Returns the logits of each state, from the logits of a packed forward."""
    states: Tensor = packed.unflatten(1, (depth, -1))
    if len(states) == 1:
        # Branch by branch already, so that nothing has to be copied.
        return states[0]
    return states[rows, branches]


def _laid(
    parts: Shaped[Tensor, "N X ..."],
    rows: Int[Tensor, " N"],
    branches: Int[Tensor, " N"],
    size: tuple[int, int],
) -> Shaped[Tensor, "B Y ..."]:
    laid = parts.new_zeros(*size, *parts.shape[1:])
    laid[rows, branches] = parts
    return laid.flatten(1, 2)
