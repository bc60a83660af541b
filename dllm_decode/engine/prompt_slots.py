"""Rows with equal prompts: keys and values of the prompt are computed once, and copied.

This is exact where a prompt's keys and values depend on the prompt alone, see
`Decoder.shares_prompts`: for the whole blocks of a block-causal model, and on uniform-state models.
It is done if the cache policy computes a prompt in the first forward of a row and never again, as
`FreeCache` does.
"""

from collections.abc import Collection, Sequence

from dllm_decode.caches.base import CacheQuery
from dllm_decode.core.columns import columns, without
from dllm_decode.core.rows import Opening, Request, Row
from dllm_decode.core.state import State
from dllm_decode.engine.decoder import Decoder


def joining(
    decoder: Decoder, state: State, requests: Sequence[Request], waited: Collection[int]
) -> tuple[list[Request], list[Request]]:
    """Returns the requests that join now, and those that join in the next round.

    If no row has computed a prompt yet, one request with this prompt joins. The others wait, so
    that they can copy its slots.

    Args:
        decoder: The decoder.
        state: The rows that run.
        requests: The requests that may join.
        waited: Indices of requests that have waited for a round; they join now.
    """
    now: list[Request] = []
    later: list[Request] = []
    computing: list[Sequence[int]] = []
    for request in requests:
        row = Row.of(request, decoder.align, decoder.model.mask_id)
        can_copy = request.index not in waited and _can_copy(decoder, row)
        if can_copy and _prompt(row) in computing:
            later.append(request)
            continue
        now.append(request)
        if can_copy and _donor(state.rows, row) is None:
            computing.append(_prompt(row))
    return now, later


def with_prompts(decoder: Decoder, state: State, num_joined: int) -> State:
    """Returns the state in which the rows that have joined last have the slots of equal prompts."""
    rows = list(state.rows)
    for number in range(len(rows) - num_joined, len(rows)):
        row = rows[number]
        donor = _donor(state.rows, row) if _can_copy(decoder, row) else None
        if donor is not None:
            for buffer in state.cache.buffers:
                buffer[:, number, :, : row.first] = buffer[:, donor, :, : row.first]
            rows[number] = _with_slots(row)
    return state._replace(rows=tuple(rows))


def _prompt(row: Row) -> Sequence[int]:
    """Returns the whole blocks of a prompt."""
    return row.request.prompt[: row.first]


def _donor(rows: Sequence[Row], new: Row) -> int | None:
    """Returns the number of a row that has computed the prompt of a new row."""
    wanted = columns((0, new.first))
    equal = (number for number, row in enumerate(rows) if _prompt(row) == _prompt(new))
    return next((number for number in equal if not without(wanted, rows[number].computed)), None)


def _with_slots(row: Row) -> Row:
    return row._replace(computed=columns((0, row.first)), last_needed=row.first)


def _can_copy(decoder: Decoder, row: Row) -> bool:
    """Returns whether the cache policy leaves out the prompt once its slots are copied."""
    if not row.first:
        return False
    opening = Opening.of_block(row.first, row.first + decoder.block_length)
    opened = _with_slots(row)._replace(opening=opening)
    query = CacheQuery(opened, opening.stop, decoder.sight.shift)
    return decoder.cache.recompute(query)[0].start > 0
