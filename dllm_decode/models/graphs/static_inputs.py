"""The static buffers of a graph, and the copies from and to the groups of a forward."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from dllm_decode.core.model import ForwardInputs, KVCache
from dllm_decode.models.graphs.backends import Buffers
from dllm_decode.models.graphs.graph_kinds import GraphKind
from dllm_decode.models.network.context import join_columns, rows_of


def new_buffers(kind: GraphKind, cache: KVCache | None, device: torch.device) -> Buffers:
    """Allocates the buffers of a kind; keys and values are those of the lasting cache."""
    size = (kind.rows, kind.columns)
    sizes = {"tokens": size, "positions": size, "wanted": (kind.rows, kind.wanted)}
    buffers = {
        name: torch.zeros(size, dtype=torch.long, device=device) for name, size in sizes.items()
    }
    if kind.queries:
        mask = (kind.rows, kind.queries, kind.slots or kind.columns)
        buffers["attend"] = torch.zeros(mask, dtype=torch.bool, device=device)
    if kind.slots:
        assert cache is not None
        buffers["slots"] = torch.zeros(size, dtype=torch.long, device=device)
        slots = slice(kind.first_slot, kind.first_slot + kind.slots)
        keys, values = (part[:, : kind.rows, :, slots] for part in cache.buffers)
        buffers |= {"keys": keys, "values": values}
    return buffers


def inputs_in(buffers: Buffers) -> ForwardInputs:
    """Returns the inputs of one forward over all rows of some buffers."""
    parts: dict[str, Any] = dict(buffers)
    if "keys" not in parts:
        return ForwardInputs(**parts)
    kv_cache = KVCache(parts.pop("keys"), parts.pop("values"))
    return ForwardInputs(**parts, kv_cache=kv_cache)


def fill(buffers: Buffers, kind: GraphKind, groups: Sequence[ForwardInputs]) -> None:
    """Copies the inputs of all groups into the buffers."""
    if kind.queries:
        buffers["attend"].zero_()
    if sum(len(group.tokens) for group in groups) < kind.rows:
        # These rows may have had inputs in the call before.
        for name in ("tokens", "positions", "wanted", "slots"):
            buffers[name].zero_()
    for group in groups:
        rows = _index_of(group)
        parts = {"tokens": group.tokens, "positions": group.positions, "wanted": group.wanted}
        if kind.slots:
            parts["slots"] = _slots_of(group) + (1 - kind.first_slot)
        for name, part in parts.items():
            buffers[name][rows] = _repeat_last(part, buffers[name].shape[1])
        if kind.queries:
            _fill_mask(buffers["attend"], group, rows)


def result_of(
    hidden: Float[Tensor, "R W H"], groups: Sequence[ForwardInputs]
) -> Float[Tensor, "_ _ H"]:
    """Returns the states of the wanted columns, as `join_columns` does, in memory of their own."""
    parts = [hidden[_index_of(group), : group.wanted.shape[1]] for group in groups]
    # The next replay overwrites `hidden`.
    return parts[0].clone() if len(parts) == 1 else join_columns(parts)


def _fill_mask(buffer: Shaped[Tensor, "R _ K"], group: ForwardInputs, rows: slice | Tensor) -> None:
    """Writes the mask of a group; slots before and after those of the group stay hidden."""
    visible = buffer
    if group.kv_cache is not None:
        visible = buffer[..., 1 : 1 + group.kv_cache.num_slots]
    if group.attend is None:
        visible[rows] = True
    else:
        # A mask of one query is that of all columns.
        visible[rows] = _repeat_last(group.attend, buffer.shape[1])


def _index_of(group: ForwardInputs) -> slice | Int[Tensor, " B"]:
    # A buffer may have more rows than the group.
    return slice(len(group.tokens)) if group.rows is None else rows_of(group)


def _slots_of(group: ForwardInputs) -> Int[Tensor, "B Q"]:
    if isinstance(group.slots, Tensor):
        return group.slots
    assert group.slots is not None
    slots = torch.arange(group.slots.start, group.slots.stop, device=group.tokens.device)
    return slots.expand_as(group.tokens)


def _repeat_last(values: Shaped[Tensor, "B X ..."], size: int) -> Shaped[Tensor, "B Y ..."]:
    """Repeats the last column, so that there are `size` columns."""
    missing = size - values.shape[1]
    if not missing:
        return values
    last = values[:, -1:]
    return torch.cat([values, last.expand(-1, missing, *last.shape[2:])], 1)
