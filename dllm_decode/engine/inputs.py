"""The inputs of the model: tokens, columns, rows of the cache, masked copies."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from dllm_decode.core.layout import Group
from dllm_decode.core.model import ForwardInputs
from dllm_decode.core.passes import Branches, Pass
from dllm_decode.core.state import State


def inputs_of(state: State, spec: Pass, branches: Branches, group: Group) -> ForwardInputs:
    """Returns the inputs of one group of branches."""
    tokens, asked, belief = branches.tokens, spec.asked, spec.belief
    if group.indices is not None:
        tokens = tokens[group.indices]
        asked = None if asked is None else asked[group.indices]
        belief = None if belief is None else belief[group.indices]
    slots = group.slots
    tokens = tokens[:, slots] if isinstance(slots, slice) else tokens.gather(1, slots)
    cache, rows = state.cache.kv_cache, None
    if cache is not None and not branches.in_columns:
        rows = cache_rows(state, *branches.rows_and_numbers(group.members))
    return ForwardInputs(
        tokens=tokens,
        positions=group.columns,
        wanted=part_of(group.predictors, asked),
        attend=group.attend,
        kv_cache=None if cache is None else cache.first(group.num_keys),
        slots=None if cache is None else slots,
        rows=rows,
        belief=belief,
    )


def cache_rows(
    state: State, rows: Sequence[int], numbers: Sequence[int]
) -> slice | Int[Tensor, " N"] | None:
    """Returns rows of the key-value cache: branch n of a row has the n-th copy of its slots.

    With a slice nothing is copied when the cache is read. `None` is all of the cache.
    """
    cache = state.cache
    found = [row + number * cache.capacity for row, number in zip(rows, numbers, strict=True)]
    if found == list(range(cache.num_rows)):
        return None
    if found == list(range(found[0], found[0] + len(found))):
        return slice(found[0], found[0] + len(found))
    return torch.tensor(found, device=state.device)


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
