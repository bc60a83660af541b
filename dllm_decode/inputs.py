"""The inputs of the model: tokens, rows of the cache, and drafts as rows or columns."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from dllm_decode.core.layout import Group, Layout
from dllm_decode.core.passes import Drafts, Pass
from dllm_decode.core.state import State
from dllm_decode.models.base import ForwardInputs
from dllm_decode.packing import pack


def inputs_of(state: State, spec: Pass, group: Group) -> ForwardInputs:
    """Returns the inputs of one group."""
    states, asked, columns = spec.states(state.here), spec.asked, group.columns
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
    size = (len(drafts.rows), state.here.width)
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
    packed = pack(
        inputs if cache.kv_cache is None else replace(inputs, slots=inputs.positions),
        rows,
        where.branches,
        size=(len(owners), depth),
        num_keys=width if cache.kv_cache is None else group.num_keys,
        first_free=width if cache.kv_cache is None else cache.num_slots,
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
