"""The inputs of the model: tokens, columns, rows of the cache."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from dllm_decode.core.model import ForwardInputs
from dllm_decode.core.passes import Branches, Pass
from dllm_decode.engine.layout import Group
from dllm_decode.engine.state import State


def inputs_of(state: State, pass_: Pass, branches: Branches, group: Group) -> ForwardInputs:
    """Returns the inputs of one group of branches, before `Pass.edit`."""
    tokens = group.part(branches.tokens)
    slots = group.slots
    wanted = group.predictors
    tokens = tokens[:, slots] if isinstance(slots, slice) else tokens.gather(1, slots)
    if pass_.offsets is not None:
        wanted = wanted.gather(1, group.part(pass_.offsets))
    cache = state.cache.kv_cache
    if cache is None:
        return ForwardInputs(tokens, group.columns, wanted, group.attend)
    pairs = branches.rows_and_branches(group.members)
    return ForwardInputs(
        tokens=tokens,
        positions=group.columns,
        wanted=wanted,
        attend=group.attend,
        kv_cache=cache.first(group.num_keys),
        slots=slots,
        # `pack` sets the rows of branches that are columns.
        rows=None if branches.in_columns else cache_rows(state, *pairs),
    )


def cache_rows(
    state: State, rows: Sequence[int], branch_numbers: Sequence[int]
) -> slice | Int[Tensor, " N"] | None:
    """Returns rows of the key-value cache: branch n of a row has the n-th copy of its slots.

    With a slice, the cache is read without a copy. `None` is all of the cache.
    """
    cache = state.cache
    indices = [
        row + branch * cache.capacity for row, branch in zip(rows, branch_numbers, strict=True)
    ]
    if indices == list(range(cache.num_rows)):
        return None
    if indices == list(range(indices[0], indices[0] + len(indices))):
        return slice(indices[0], indices[0] + len(indices))
    return torch.tensor(indices)
