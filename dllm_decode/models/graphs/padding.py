"""Forwards that are filled up to one of a few sizes, so that few have to be recorded."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from dllm_decode.models.base import ForwardInputs, KVCache, with_spare
from dllm_decode.sizes import round_up


class Sizes(NamedTuple):
    """The sizes of a forward.

    Attributes:
        rows: B.
        columns: Q.
        wanted: W.
        keys: K.
    """

    rows: int
    columns: int
    wanted: int
    keys: int


class Padding(NamedTuple):
    """Where a forward lies in a larger one.

    Attributes:
        part: Sizes of the forward.
        full: Sizes of the larger one.
        first_key: Its first key there.
        rows: Its rows there.
        cache_rows: Which rows of the memory those of the larger one are, if they have to be named:
            as the rows of the forward are, the last one repeated.
    """

    part: Sizes
    full: Sizes
    first_key: int
    rows: slice | Int[Tensor, " B"]
    cache_rows: slice | Int[Tensor, " B"] | None


class PaddedForward(NamedTuple):
    """A forward, and the larger one that it became.

    Attributes:
        given: The forward; without its memory, which is not kept alive.
        inputs: The larger one.
        layout: Where the one lies in the other.
    """

    given: ForwardInputs
    inputs: ForwardInputs
    layout: Padding

    @property
    def without_memory(self) -> "PaddedForward":
        """The same, for `bucketed` to start from."""
        return self._replace(inputs=replace(self.inputs, kv_cache=None))

    def cut(self, logits: Float[Tensor, "X Y V"]) -> Float[Tensor, "B W V"]:
        """Returns the logits of the forward, from those of the larger one: a view of slices."""
        kept: Tensor = logits[:, : self.layout.part.wanted][self.layout.rows]
        return kept


def pad_to_bucket(inputs: ForwardInputs, earlier: PaddedForward | None = None) -> PaddedForward:
    """Fills a forward up to the next larger size; what is asked for comes out as before.

    Columns go up to a multiple of 8 if they are few, of up to 64 if many: by a quarter at most from
    32 on. Rows go up to about one of eight numbers. Further columns and rows compute something
    finite that nobody sees: without a memory the mask hides them, with one they are stored in its
    spare slot. If that makes as many rows as the memory has, each becomes the row that it is there,
    so that no keys and values have to be gathered.

    A memory is seen from its spare slot on, so there is always a mask then; without one, only if
    columns were added. A memory without a spare slot leaves a forward as large as it is.

    Args:
        inputs: The forward.
        earlier: Another, of which those tensors are used again that would become the same.
    """
    layout = _layout(inputs)
    given = replace(inputs, kv_cache=None)
    again = earlier is not None and _is_same_layout(earlier.layout, layout)
    parts = {
        name: vars(earlier.inputs)[name]
        if again and earlier is not None and _is_same(vars(earlier.given)[name], vars(given)[name])
        else fill(inputs, layout)
        for name, fill in _FILLED.items()
    }
    return PaddedForward(
        given, ForwardInputs(**parts, kv_cache=_memory(inputs.kv_cache, layout)), layout
    )


def num_columns(wished: int) -> int:
    """Returns to how many columns a number of them is filled up."""
    step = 1 << min(6, max(3, (wished - 1).bit_length() - 3))
    return round_up(wished, step)


def num_rows(wished: int, limit: int) -> int:
    """Returns to how many rows a number of them is filled up, where there are `limit` at most."""
    step, power = -(-limit // 8), _power_of_two(wished)
    return min(limit, power if power < step else round_up(wished, step))


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


def _layout(inputs: ForwardInputs) -> Padding:
    rows, columns = inputs.tokens.shape
    wanted, kv_cache = inputs.wanted.shape[1], inputs.kv_cache
    every = slice(0, rows)
    if kv_cache is None:
        part = Sizes(rows, columns, wanted, columns)
        more = num_columns(columns)
        full = Sizes(num_rows(rows, _power_of_two(rows)), more, num_columns(wanted), more)
        return Padding(part, full, 0, every, None)
    part = Sizes(rows, columns, wanted, kv_cache.keys.shape[3])
    if kv_cache.whole is None:
        return Padding(part, part, 0, every, inputs.rows)
    limit, there = kv_cache.keys.shape[1], inputs.rows
    if isinstance(there, slice):
        there = slice(*there.indices(limit)[:2])
    filled = num_rows(rows, limit)
    full = Sizes(filled, num_columns(columns), num_columns(wanted), with_spare(part.keys))
    if filled == limit:
        return Padding(part, full, 1, every if there is None else there, None)
    return Padding(part, full, 1, every, there)


def _is_same_layout(one: Padding, other: Padding) -> bool:
    return (
        one[:3] == other[:3]
        and _is_same(one.rows, other.rows)
        and _is_same(one.cache_rows, other.cache_rows)
    )


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (isinstance(one, slice) and isinstance(other, slice) and one == other)


def _tokens(inputs: ForwardInputs, layout: Padding) -> Int[Tensor, "X Y"]:
    return _laid(inputs.tokens, layout, layout.full.columns)


def _positions(inputs: ForwardInputs, layout: Padding) -> Int[Tensor, "X Y"]:
    return _laid(inputs.positions, layout, layout.full.columns)


def _wanted(inputs: ForwardInputs, layout: Padding) -> Int[Tensor, "X Y"]:
    return _laid(inputs.wanted, layout, layout.full.wanted)


def _attend(
    inputs: ForwardInputs, layout: Padding
) -> Bool[Tensor, "X Y Z"] | Bool[Tensor, "X 1 Z"] | None:
    """Hides what was added from what was there; what was added sees what was there, or some of it.

    A query that sees nothing would do no harm as long as it computes something finite.
    """
    given, part, full = inputs.attend, layout.part, layout.full
    if part == full or (given is None and part.keys == full.keys):
        return given
    height = 1 if given is None or given.shape[1] == 1 else full.columns
    there = slice(layout.first_key, layout.first_key + part.keys)
    laid = inputs.tokens.new_zeros((full.rows, height, full.keys), dtype=torch.bool)
    laid[:, :, there] = True
    if given is not None:
        laid[layout.rows, : given.shape[1], there] = given
    return laid


def _slots(inputs: ForwardInputs, layout: Padding) -> Int[Tensor, "X Y"] | None:
    """Names every slot, so that one recording serves all blocks."""
    slots = inputs.slots
    if slots is None:
        return None
    if isinstance(slots, slice):
        slots = torch.arange(*slots.indices(layout.part.keys), device=inputs.tokens.device)
        slots = slots.expand_as(inputs.tokens)
    # Of what is added: 0, the spare one.
    return _laid(slots + layout.first_key, layout, layout.full.columns)


def _memory_rows(inputs: ForwardInputs, layout: Padding) -> slice | Int[Tensor, " X"] | None:
    rows, num_rows = layout.cache_rows, layout.full.rows
    if rows is None or layout.first_key == 0:
        return rows
    if isinstance(rows, slice):
        named = torch.arange(rows.start, rows.start + num_rows, device=inputs.tokens.device)
        return named.clamp(max=rows.start + layout.part.rows - 1)
    return torch.cat([rows, rows[-1:].expand(num_rows - len(rows))])


_FILLED: Mapping[str, Callable[[ForwardInputs, Padding], Any]] = {
    "tokens": _tokens,
    "positions": _positions,
    "wanted": _wanted,
    "attend": _attend,
    "slots": _slots,
    "rows": _memory_rows,
}


def _memory(kv_cache: KVCache | None, layout: Padding) -> KVCache | None:
    if kv_cache is None or kv_cache.whole is None:
        return kv_cache
    # An object of its own: whoever keeps it does not keep what the memory's owner holds.
    keys, values = kv_cache.whole.keys, kv_cache.whole.values
    num_keys = layout.full.keys
    return KVCache(keys[..., :num_keys, :], values[..., :num_keys, :])


def _laid(part: Shaped[Tensor, "B Z"], layout: Padding, width: int) -> Shaped[Tensor, "X Y"]:
    """Puts a part where it belongs in the larger forward, zeros elsewhere."""
    num_rows = layout.full.rows
    if part.shape == (num_rows, width) and isinstance(layout.rows, slice):
        return part
    laid = part.new_zeros(num_rows, width)
    laid[layout.rows, : part.shape[1]] = part
    return laid
