"""The key-value cache of one decode, and what its slots were computed from."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dllm_decode.caches.base import CacheQuery, Columns, History
from dllm_decode.canvas import Canvas
from dllm_decode.models.base import KVCache
from dllm_decode.packing import Branches

# The rows of a round, some of them, and the states that a verifier made of them.
_KNOWN_LAYOUTS = 4


class CacheLedger:
    """Keeps the key-value cache of one decode, and notes what its slots were computed from.

    Allocated once; rows that are finished keep their slots as they are.
    """

    def __init__(self, kv_cache: KVCache | None, canvas: Canvas, *, with_ledger: bool) -> None:
        """Starts empty.

        Args:
            kv_cache: Of the decode; `None` without a cache.
            canvas: The whole batch.
            with_ledger: Whether the policy reads `CacheQuery.history`.
        """
        self._kv_cache = kv_cache
        self._history: History | None = None
        if with_ledger:
            zeros = torch.zeros_like(canvas.tokens)
            self._history = History(zeros, zeros.clone(), torch.zeros_like(canvas.rows))
        self._length = canvas.length
        self._previous: list[int | None] = [None] * len(canvas)
        self._row_ids = OrderedDict({canvas.layout: canvas.rows.tolist()})

    def query(
        self,
        canvas: Canvas,
        needed: slice,
        *,
        end: int,
        shift: int,
        step: int,
        rows: Sequence[int] | None = None,
    ) -> CacheQuery:
        """Describes the next forward to a policy.

        Args:
            canvas: As in `CacheQuery`.
            needed: As in `CacheQuery`.
            end: As in `CacheQuery`.
            shift: As in `CacheQuery`.
            step: As in `CacheQuery`.
            rows: `canvas.rows`, where the host knows them already.
        """
        history = None
        if self._history is not None:
            # A token that was re-masked has not been computed since, whatever it was.
            is_masked = canvas.tokens == canvas.mask_id
            clean, since, num_forwards = (part[canvas.rows] for part in self._history)
            history = History(
                clean.masked_fill(is_masked, 0), since.masked_fill(is_masked, 0), num_forwards
            )
        return CacheQuery(
            canvas=canvas,
            needed=needed,
            end=end,
            shift=shift,
            step=step,
            previous=tuple(self._previous[row] for row in rows or self.ids(canvas)),
            history=history,
        )

    def kv_cache(self, num_slots: int) -> KVCache | None:
        """Returns the first slots; those behind the canvas' own are added when first asked for."""
        if self._kv_cache is None:
            return None
        if num_slots > self._kv_cache.keys.shape[3]:
            self._kv_cache = self._kv_cache.widened(num_slots)
        return self._kv_cache.first(num_slots)

    def rows(self, canvas: Canvas, branches: Branches | None) -> slice | Int[Tensor, " B"] | None:
        """Says which rows of the key-value cache a canvas has, as `ForwardInputs.rows`.

        Branch n of a row has the slots of the row's n-th copy, which are brought up to date here:
        a forward may overwrite them without a trace in the row's own.
        """
        num_rows = len(self._previous)
        if branches is not None:
            copies = canvas.rows + branches.places * num_rows
            further = slice(branches.num_rows, None)
            self._copy(canvas.rows[further], copies[further])
            return copies
        ids = self.ids(canvas)
        every = self._kv_cache is None or self._kv_cache.keys.shape[1] == num_rows
        if every and ids == list(range(num_rows)):
            return None
        together = ids == list(range(ids[0], ids[0] + len(ids)))
        return slice(ids[0], ids[0] + len(ids)) if together else canvas.rows

    def record(
        self,
        query: CacheQuery,
        columns: Columns,
        branches: Branches | None,
        numbers: Sequence[int] | None = None,
    ) -> None:
        """Notes that a forward computed these columns; what branches compute does not last.

        Args:
            query: What the policy was asked.
            columns: What was computed of its rows.
            branches: Which rows are states of one row, if some are.
            numbers: `query.canvas.rows`, where the host knows them already.
        """
        canvas = query.canvas
        rows, tokens = canvas.rows, canvas.tokens
        if branches is not None:
            own = slice(0, branches.num_rows)
            rows, tokens = rows[own], tokens[own]
            columns = columns if isinstance(columns, slice) else columns[own]
        if self._history is not None:
            if isinstance(columns, slice):
                columns = _listed(columns, query.end, rows)
            is_masked = tokens.gather(1, columns) == canvas.mask_id
            _note(self._history, rows, columns, is_masked)
        for row in numbers or self.ids(canvas):
            self._previous[row] = query.needed.start

    def rearrange(self, canvas: Canvas, shifts: Mapping[int, int]) -> None:
        """Follows rows to other columns of a canvas of another length.

        Args:
            canvas: The new canvas.
            shifts: By how many columns each row moved; of rows that are not named nothing is known.
        """
        history = self._history
        if history is not None:
            empty = history.clean_forwards.new_zeros(len(self._previous), canvas.length)
            self._history = History(empty, empty.clone(), torch.zeros_like(history.num_forwards))
        self.kv_cache(canvas.length)
        buffers = () if self._kv_cache is None else self._kv_cache.buffers
        previous, self._previous = self._previous, [None] * len(self._previous)
        for row, shift in shifts.items():
            here = slice(max(0, -shift), min(self._length, canvas.length - shift))
            there = slice(here.start + shift, here.stop + shift)
            if history is not None:
                assert self._history is not None
                self._history.clean_forwards[row, there] = history.clean_forwards[row, here]
                self._history.clean_since[row, there] = history.clean_since[row, here]
                self._history.num_forwards[row] = history.num_forwards[row]
            first = previous[row]
            # What predicts a row's own first column is padding, which is left behind.
            self._previous[row] = None if first is None else max(0, first + shift)
            for buffer in buffers if shift else ():
                buffer[:, row, :, there] = buffer[:, row, :, here].clone()
        self._length = canvas.length

    def _copy(self, rows: Int[Tensor, " N"], copies: Int[Tensor, " N"]) -> None:
        for buffer in () if self._kv_cache is None else self._kv_cache.buffers:
            buffer[:, copies.to(buffer.device)] = buffer[:, rows.to(buffer.device)]

    def ids(self, canvas: Canvas) -> list[int]:
        """Returns the canvas' rows; the host waits for them when rows have come or left."""
        if canvas.layout not in self._row_ids:
            self.know(canvas, canvas.rows.tolist())
        self._row_ids.move_to_end(canvas.layout)
        return self._row_ids[canvas.layout]

    def know(self, canvas: Canvas, ids: list[int]) -> None:
        """Notes a canvas' rows, which the host need not wait for then."""
        self._row_ids[canvas.layout] = ids
        if len(self._row_ids) > _KNOWN_LAYOUTS:
            self._row_ids.popitem(last=False)


def _note(
    history: History,
    rows: Int[Tensor, " B"],
    columns: Int[Tensor, "B Q"],
    is_masked: Bool[Tensor, "B Q"],
) -> None:
    """Notes that a forward computed some columns."""
    clean, since, num_forwards = history
    num_forwards[rows] += 1
    index = (rows[:, None], columns)
    clean[index] = (clean[index] + 1).masked_fill(is_masked, 0)
    first = torch.where(since[index] > 0, since[index], num_forwards[rows, None])
    since[index] = first.masked_fill(is_masked, 0)


def _listed(columns: slice, end: int, rows: Int[Tensor, " B"]) -> Int[Tensor, "B Q"]:
    return torch.arange(*columns.indices(end), device=rows.device).expand(len(rows), -1)
