"""One round of all rows.

    state --> open_blocks --> look ----------> decide --------> settle ----> advance -----> state
              open columns:   forwards and     which columns,   the canvas   the one time
              the schedule    a view:          which tokens:    with new     that the host
                              the verifier     the sampler      tokens       waits

Each function takes the state and returns the next one.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from jaxtyping import Shaped
from torch import Tensor

from dllm_decode.core.observers import Observer
from dllm_decode.core.output import final_tokens
from dllm_decode.core.rows import Opening, PluginNumbers, Row
from dllm_decode.engine.breach_errors import errors_of
from dllm_decode.engine.checks import (
    require_after,
    require_look,
    require_numbers,
    require_opening,
)
from dllm_decode.engine.decide import decide
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.settle import settle
from dllm_decode.engine.state import State
from dllm_decode.engine.step_event import event_of
from dllm_decode.engine.verifier import Look
from samplers.calls import require_max_steps
from samplers.checks import shown


def one_round(
    decoder: Decoder, state: State, observers: Sequence[Observer] = ()
) -> tuple[State, list[int]]:
    """Runs one round of all rows.

    Args:
        decoder: The model and the plug-ins.
        state: The rows, of which there is at least one.
        observers: Called with the round's `StepEvent`.

    Returns:
        The state afterwards, and the rows whose answer has ended, or that ended with an error.
    """
    state = open_blocks(decoder, state)
    if state.constrained_rows is not None:
        state = state._replace(
            constrained_rows=state.constrained_rows.read_settled(state.rows, state.canvas)
        )
    state, seen = require_look(decoder.verifier.look(decoder, state), owner=decoder.verifier)
    stepping = seen.stepping(state)
    part, seen, decision = decide(decoder, state.take(stepping), seen)
    before = part.canvas
    part, moved = settle(decoder, part, seen, decision)
    state, done = advance(decoder, state.put(stepping, part), seen, stepping)
    if observers:
        event = event_of(decoder, state, seen, before, moved, stepping, done)
        for observer in observers:
            observer(event)
    return state, done


def open_blocks(decoder: Decoder, state: State) -> State:
    """Lets the schedule open positions in each row, before the look.

    A row whose sampler takes more steps than it promised gets an error, and leaves after the round.

    Raises:
        RuntimeError: If an opening or `max_steps` breaks its contract.
    """
    rows = tuple(_open_row(decoder, row) for row in state.rows)
    return state if rows == state.rows else state._replace(rows=rows, window=None)


def _open_row(decoder: Decoder, row: Row) -> Row:
    """Returns a row with its new opening."""
    chosen = decoder.blocks.opening(row, decoder.block_length, decoder.model.logit_shift)
    opening = require_opening(decoder, chosen, row)
    opening = _as_sampler_sees(decoder, row, opening)
    if opening.phase == row.opening.phase and row.phase_steps >= row.max_steps:
        return row._replace(error=_too_many_steps(decoder, row))
    previous = row.opening
    row = row._replace(opening=opening)
    if opening.phase != previous.phase:
        row = _begin_phase(decoder, row)
    if opening.cache_period != previous.cache_period:
        row = row._replace(period_forwards=0)
    return row


def _as_sampler_sees(decoder: Decoder, row: Row, opening: Opening) -> Opening:
    """Returns an opening whose block has all columns that the sampler reads, for cache policies."""
    if decoder.sampler_sees_block_only:
        return opening
    start = opening.block[0] if decoder.sampler.scope == "suffix" else row.blocks_start
    return opening._replace(block=(start, row.end))


def _begin_phase(decoder: Decoder, row: Row) -> Row:
    """Returns a row whose sampler begins anew, with the steps that it may take."""
    sampler, verifier = decoder.sampler, decoder.verifier
    masks = _num_masks(row, decoder.model.mask_id)
    require_max_steps(sampler.max_steps(masks), owner=sampler)
    most = require_max_steps(verifier.max_steps(sampler, masks), owner=verifier)
    return row._replace(is_fresh=True, phase_steps=0, max_steps=most)


def _too_many_steps(decoder: Decoder, row: Row) -> str:
    """Returns the error of a row that has taken all steps that its phase may take."""
    own_limit = decoder.sampler.max_steps(_num_masks(row, decoder.model.mask_id))
    by_sampler = decoder.verifier.asks_sampler and row.phase_steps >= own_limit
    culprit = decoder.sampler if by_sampler else decoder.verifier
    return (
        f"{culprit!r} promises to finish a block within {row.max_steps} steps, but masks are left "
        f"after {row.phase_steps}; its `max_steps` or its rule is wrong."
    )


def _num_masks(row: Row, mask_id: int) -> int:
    """Counts the positions of a row's phase that are not given."""
    start, stop = (max(0, column - row.prompt_length) for column in row.opening.phase)
    given = row.request.template[start:stop]
    return stop - start - sum(token != mask_id for token in given)


def advance(
    decoder: Decoder, state: State, seen: Look, stepping: Sequence[int]
) -> tuple[State, list[int]]:
    """Reads on the host how far each row is; returns the state and the rows that ended.

    A row ends with an error if a plug-in broke its contract in this row.

    Args:
        decoder: The model and the plug-ins.
        state: All rows, after the decision.
        seen: What the decision was made from.
        stepping: The rows that took a step.
    """
    verifier = decoder.verifier
    state, verified = require_after(verifier.after(decoder, state), owner=verifier)
    rows, done = [], []
    readings = _read_on_host(decoder, state, verified)
    errors = errors_of(decoder, state, seen, stepping, readings.broken)
    for n, row in enumerate(state.rows):
        unsettled = readings.first_unsettled[n]
        error = errors[n]
        # A row that took a step has counted a forward, unless look returned an older state.
        if n in stepping and not row.nfe and not row.target_nfe:
            error = (
                f"look of {verifier!r} must return the state that forward returned; no forward is "
                "counted."
            )
        row = row._replace(
            first_unsettled=unsettled,
            phase_steps=row.phase_steps + (n in stepping),
            numbers=readings.numbers[n],
            error=row.error or error,
        )
        rows.append(row)
        # A block-causal model decodes its whole last block, also the columns after the answer.
        is_full = unsettled >= max(row.answer_end, row.opening.phase[1])
        if row.error or is_full or (row.config.stop_at_eos and readings.has_ended[n]):
            done.append(n)
    state = state._replace(rows=tuple(rows), breaches=(), num_rounds=state.num_rounds + 1)
    return state, sorted({*done, *_rows_that_stop(decoder, state, stepping)})


class _Readings(NamedTuple):
    """Values of all rows that the host reads once a round.

    Attributes:
        first_unsettled: The first unsettled column of each row.
        has_ended: For each row, 1 if a settled EOS has no unsettled column before it, else 0.
        numbers: For each row, the numbers that plug-ins asked for.
        broken: For each breach of the state, 1 for each of its rows that broke the rule, else 0.
    """

    first_unsettled: Sequence[int]
    has_ended: Sequence[int]
    numbers: Sequence[PluginNumbers]
    broken: Sequence[Sequence[int]]


def _read_on_host(decoder: Decoder, state: State, verified: Shaped[Tensor, "B N"]) -> _Readings:
    """Reads all values at once; in plain decoding the host waits only here in a round."""
    canvas, history = state.canvas, state.cache.history
    columns = torch.arange(canvas.width, device=canvas.tokens.device)
    first = torch.where(canvas.unsettled, columns, canvas.width).amin(-1)
    has_ended = (canvas.eos & (columns < first[:, None])).any(-1)
    blocks, cache = decoder.blocks, decoder.cache
    opened = blocks.numbers(canvas, decoder.block_length, state.blocks_state)
    shift = decoder.model.logit_shift
    cached = None if history is None else cache.numbers(canvas, history, shift)
    numbers = [
        require_numbers(opened, canvas, owner=blocks),
        require_numbers(cached, canvas, owner=cache),
        verified,
    ]
    broken = [breach.found for breach in state.breaches]
    unsettled, ended, *lists = _on_host([first, has_ended, *numbers, *broken])
    by_plugin, by_breach = lists[: len(numbers)], lists[len(numbers) :]
    by_row = [PluginNumbers(*row_numbers) for row_numbers in zip(*by_plugin, strict=True)]
    return _Readings(unsettled, ended, by_row, by_breach)


def _on_host(tensors: Sequence[Tensor]) -> list[Any]:
    """Returns tensors of one or two axes as lists, of numbers or of tuples."""
    parts = [tensor.flatten() for tensor in tensors if tensor.numel()]
    values = iter(torch.cat(parts).tolist())
    lists: list[Any] = []
    for tensor in tensors:
        if tensor.ndim == 1:
            lists.append(list(islice(values, len(tensor))))
        else:
            lists.append([tuple(islice(values, tensor.shape[1])) for _ in range(len(tensor))])
    return lists


def _rows_that_stop(decoder: Decoder, state: State, stepping: Sequence[int]) -> list[int]:
    """Returns the rows that their stop rule ends; the host reads tokens only if a rule needs them.

    Rows without a step are not asked, because given tokens could end them before their first step.
    """
    asking = [n for n in stepping if state.rows[n].request.stop.reads_tokens]
    if not asking:
        return []
    answers = final_tokens(state.rows, state.canvas, is_final=decoder.tokens_are_final)
    stopped = []
    for n in asking:
        rule = state.rows[n].request.stop
        stops: object = rule.stops(answers[n])
        if not isinstance(stops, bool):
            raise RuntimeError(f"stops of {rule!r} must return True or False, got {shown(stops)}.")
        if stops:
            stopped.append(n)
    return stopped
