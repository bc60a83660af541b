"""The inputs of the model: tokens, columns, rows of the cache."""

from collections.abc import Sequence

from jaxtyping import Int, Shaped
from torch import Tensor

from dllm_decode.core.model import ForwardInputs
from dllm_decode.core.passes import Branches, Pass
from dllm_decode.core.sending import sent
from dllm_decode.engine.layout import Group
from dllm_decode.engine.state import State


def inputs_of(state: State, spec: Pass, branches: Branches, group: Group) -> ForwardInputs:
    """Returns the inputs of one group of branches."""
    tokens, offsets = branches.tokens, spec.asked
    if group.indices is not None:
        tokens = tokens[group.indices]
        offsets = None if offsets is None else offsets[group.indices]
    slots = group.slots
    tokens = tokens[:, slots] if isinstance(slots, slice) else tokens.gather(1, slots)
    cache, rows = state.cache.kv_cache, None
    if cache is not None and not branches.in_columns:
        rows = cache_rows(state, *branches.rows_and_numbers(group.members))
    inputs = ForwardInputs(
        tokens=tokens,
        positions=group.columns,
        wanted=part_of(group.predictors, offsets),
        attend=group.attend,
        kv_cache=None if cache is None else cache.first(group.num_keys),
        slots=None if cache is None else slots,
        rows=rows,
    )
    return inputs if spec.edit is None else spec.edit(inputs, group.members)


def cache_rows(
    state: State, rows: Sequence[int], numbers: Sequence[int]
) -> slice | Int[Tensor, " N"] | None:
    """Returns rows of the key-value cache: branch n of a row has the n-th copy of its slots.

    With a slice, the cache is read without a copy. `None` is all of the cache.
    """
    cache = state.cache
    indices = [row + number * cache.capacity for row, number in zip(rows, numbers, strict=True)]
    if indices == list(range(cache.num_rows)):
        return None
    if indices == list(range(indices[0], indices[0] + len(indices))):
        return slice(indices[0], indices[0] + len(indices))
    return sent(indices, state.device)


def part_of(
    values: Shaped[Tensor, "N W"], asked: Int[Tensor, "N n"] | None
) -> Shaped[Tensor, "N _"]:
    """Returns the columns of each row at the offsets `asked`; `None`: all columns."""
    return values if asked is None else values.gather(1, asked)
