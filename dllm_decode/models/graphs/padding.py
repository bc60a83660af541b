"""Forwards that are padded to one of a few sizes, so that few have to be captured."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from dllm_decode.core.model import ForwardInputs, KVCache
from dllm_decode.core.sizes import round_up

_KEY_STEP = 64
# Rows are padded to all of the cache up to this many columns in all rows together; beyond, what
# the further rows compute costs more than gathering keys and values.
_MAX_PADDED_COLUMNS = 512


class PaddedForward(NamedTuple):
    """A forward over all rows of a cache, and where the given one lies in it.

    Attributes:
        inputs: The padded forward; its cache starts with the spare slot.
        rows: Rows of the given forward.
        num_wanted: Wanted columns of the given forward.
    """

    inputs: ForwardInputs
    rows: slice | Int[Tensor, " B"]
    num_wanted: int

    def cut(self, logits: Float[Tensor, "X Y V"]) -> Float[Tensor, "B W V"]:
        """Returns the logits of the given forward; a view if its rows are a slice."""
        kept: Tensor = logits[:, : self.num_wanted][self.rows]
        return kept


def num_columns(least: int) -> int:
    """Rounds a number of columns up: to a multiple of 8, and by at most a quarter from 32 on."""
    step = 1 << min(6, max(3, (least - 1).bit_length() - 3))
    return round_up(least, step)


def is_padded(inputs: ForwardInputs, whole: KVCache, *, max_columns: int) -> bool:
    """Says whether padding a forward pays: it has few columns, and not too many are added."""
    num_rows, limit = len(inputs.tokens), whole.keys.shape[1]
    padded = limit * num_columns(inputs.tokens.shape[1])
    return padded <= max_columns and (num_rows == limit or padded <= _MAX_PADDED_COLUMNS)


def pad_to_bucket(inputs: ForwardInputs, whole: KVCache) -> PaddedForward:
    """Pads a forward to all rows of its cache and to the next larger number of columns.

    Every row becomes the row that it is in the cache, so that no keys and values are gathered.
    The columns and rows that are added write to slot 0 of the whole buffers, which is spare, and
    compute something finite that nobody reads.
    """
    assert inputs.kv_cache is not None
    B, Q = inputs.tokens.shape
    limit, device = whole.keys.shape[1], inputs.tokens.device
    rows = inputs.rows
    if rows is None:
        rows = slice(0, B)
    elif isinstance(rows, slice):
        rows = slice(*rows.indices(limit)[:2])
    slots = inputs.slots
    if isinstance(slots, slice):
        indices = range(*slots.indices(inputs.kv_cache.num_slots))
        slots = torch.arange(indices.start, indices.stop, indices.step, device=device)
        slots = slots.expand(B, Q)
    assert slots is not None
    size = (limit, num_columns(Q))
    num_keys = min(round_up(inputs.kv_cache.num_slots + 1, _KEY_STEP), whole.num_slots)
    padded = ForwardInputs(
        tokens=_laid(inputs.tokens, size, rows),
        positions=_laid(inputs.positions, size, rows),
        wanted=_laid(inputs.wanted, (limit, num_columns(inputs.wanted.shape[1])), rows),
        attend=_padded_mask(inputs, size, rows, num_keys),
        kv_cache=KVCache(whole.keys[..., :num_keys, :], whole.values[..., :num_keys, :]),
        slots=_laid(slots + 1, size, rows),
    )
    return PaddedForward(padded, rows, inputs.wanted.shape[1])


def _padded_mask(
    inputs: ForwardInputs, size: tuple[int, int], rows: slice | Int[Tensor, " B"], num_keys: int
) -> Bool[Tensor, "X Y Z"] | Bool[Tensor, "X 1 Z"]:
    """Hides the spare slot and the slots behind the cache's own; queries that are added see all."""
    assert inputs.kv_cache is not None
    given, there = inputs.attend, slice(1, 1 + inputs.kv_cache.num_slots)
    height = 1 if given is None or given.shape[1] == 1 else size[1]
    laid = inputs.tokens.new_zeros((size[0], height, num_keys), dtype=torch.bool)
    laid[:, :, there] = True
    if given is not None:
        laid[rows, : given.shape[1], there] = given
    return laid


def _laid(
    part: Shaped[Tensor, "B Z"], size: tuple[int, int], rows: slice | Int[Tensor, " B"]
) -> Shaped[Tensor, "X Y"]:
    """Puts a part into its rows and the first columns of zeros."""
    if part.shape == size and isinstance(rows, slice):
        return part
    laid = part.new_zeros(size)
    laid[rows, : part.shape[1]] = part
    return laid
