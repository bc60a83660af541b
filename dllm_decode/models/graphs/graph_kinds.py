"""Kinds of graphs: their sizes, and which kind serves a forward."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from dllm_decode.core.model import ForwardInputs
from dllm_decode.core.sizes import COLUMN_STRIDE, round_up
from dllm_decode.models.graphs.lasting_cache import SLOT_STEP, LastingCache, power_of_two

# More columns keep a GPU busy for longer than Python needs to launch their operations.
MOST_COLUMNS = 512


class GraphKind(NamedTuple):
    """The sizes of a graph. All else that a forward depends on is in the graph's buffers.

    Attributes:
        rows: Rows, which are the first ones of the KV cache if there is one.
        columns: Computed columns of each row.
        wanted: Wanted columns of each row.
        slots: Slots that are read, with a mask slot 0 too; 0: there is no KV cache.
        queries: Queries of the mask; 0: no mask; 1: one for all columns; otherwise `columns`.
    """

    rows: int
    columns: int
    wanted: int
    slots: int
    queries: int

    @property
    def first_slot(self) -> int:
        """The first slot of the lasting cache that is read.

        Slot 0, which padded rows write to, can only be read where a mask hides it.
        """
        return 0 if self.queries else 1


def kind_of(groups: Sequence[ForwardInputs], cache: LastingCache) -> GraphKind | None:
    """Returns the kind of graph that serves all groups at once; `None`: there is no such kind.

    Args:
        groups: The groups of one forward.
        cache: The cache that graphs can read.
    """
    if groups[0].kv_cache is None:
        kind = _kind_without_cache(groups[0]) if len(groups) == 1 else None
    else:
        kind = _kind_with_cache(groups, cache)
    return None if kind is None or kind.rows * kind.columns > MOST_COLUMNS else kind


def _kind_without_cache(inputs: ForwardInputs) -> GraphKind:
    rows, columns = inputs.tokens.shape
    return GraphKind(rows, columns, inputs.wanted.shape[1], 0, _num_queries(inputs))


def _kind_with_cache(groups: Sequence[ForwardInputs], cache: LastingCache) -> GraphKind | None:
    """Merges groups into the rows of the cache that they are.

    Without padding, a graph has the eager forward's own sizes, and gives the same bits. Otherwise a
    mask hides the padding, and results are the eager ones up to rounding.
    """
    caches = [group.kv_cache for group in groups if group.kv_cache is not None]
    if cache.whole is None or not all(map(cache.has, caches)):
        return None
    num_rows = power_of_two(max(_end_of_rows(group) for group in groups))
    columns = max(group.tokens.shape[1] for group in groups)
    if len(groups) > 1:
        columns = round_up(columns, COLUMN_STRIDE)
    num_keys, queries = {part.num_slots for part in caches}, max(map(_num_queries, groups))
    slots, is_padded = max(num_keys), sum(len(group.tokens) for group in groups) < num_rows
    if is_padded or queries or len(num_keys) > 1 or slots % SLOT_STEP:
        queries = columns if queries > 1 else 1
        slots = round_up(slots + 1, SLOT_STEP)
    wanted = max(group.wanted.shape[1] for group in groups)
    kind = GraphKind(num_rows, columns, wanted, slots, queries)
    return None if kind.first_slot + slots > cache.whole.num_slots else kind


def _num_queries(inputs: ForwardInputs) -> int:
    return 0 if inputs.attend is None else inputs.attend.shape[1]


def _end_of_rows(inputs: ForwardInputs) -> int:
    """Returns the first row of the KV cache after those of a group."""
    if isinstance(inputs.rows, Tensor):
        return int(inputs.rows.max()) + 1
    return len(inputs.tokens) if inputs.rows is None else int(inputs.rows.stop)
