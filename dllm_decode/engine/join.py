"""Rows that join and leave a running decode, at any round."""

import time
from collections.abc import Sequence

import torch

from dllm_decode.caches.history import History
from dllm_decode.core.canvas import Canvas
from dllm_decode.core.requests import Request
from dllm_decode.core.rows import PluginNumbers, Row
from dllm_decode.core.sending import send
from dllm_decode.engine.checks import require_numbers
from dllm_decode.engine.commit_state import CommitState
from dllm_decode.engine.constraints.constrained_rows import ConstrainedRows
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.state import CacheState, State
from samplers.logits.noise import row_keys
from samplers.state import pad_state, take_state


def join(decoder: Decoder, state: State, requests: Sequence[Request]) -> State:
    """Returns the state with new rows, before their first round; other rows do not change."""
    if not requests:
        return state
    mask_id = decoder.model.mask_id
    now = time.perf_counter()
    new = [Row.of(request, decoder.block_multiple, mask_id, now) for request in requests]
    canvas = new_canvas(decoder, new)
    numbers = decoder.blocks.numbers(canvas, decoder.block_length, None)
    lists = require_numbers(numbers, canvas, owner=decoder.blocks).tolist()
    new = [
        row._replace(numbers=PluginNumbers(blocks=tuple(values)))
        for row, values in zip(new, lists, strict=True)
    ]
    device = state.device
    num_new = len(new)
    noise = [(request.config.seed, request.noise_index) for request in requests]
    seeds, indices = send(noise, device).unbind(-1)
    cost = state.cost
    zeros = torch.zeros(num_new, dtype=torch.long, device=device)
    joined = state.canvas.joined(canvas) if state.rows else canvas
    commits = None
    if decoder.return_logprobs:
        commits = CommitState.joined(state.commits, num_new, joined.tokens)
    return state._replace(
        rows=(*state.rows, *new),
        canvas=joined,
        noise_keys=torch.cat([state.noise_keys, row_keys(seeds, indices)]),
        cost=cost._replace(
            drafted=torch.cat([cost.drafted, zeros]), accepted=torch.cat([cost.accepted, zeros])
        ),
        sampler_state=pad_state(state.sampler_state, num_new),
        blocks_state=pad_state(state.blocks_state, num_new),
        verifier_state=pad_state(state.verifier_state, num_new),
        commits=commits,
        constrained_rows=ConstrainedRows.of((*state.rows, *new), device),
        cache=_cache_with(decoder, state, new, canvas),
        window=None,
        layout=None,
    )


def new_canvas(decoder: Decoder, rows: Sequence[Row]) -> Canvas:
    """Returns the canvas of rows before their first round."""
    return Canvas.of(
        rows,
        # A window that begins with the last block must fit.
        width=max((row.end + decoder.window_length for row in rows), default=0),
        mask_id=decoder.model.mask_id,
        eos_ids=decoder.verifier.eos_ids(decoder.model),
        device=decoder.model.device,
    )


def _cache_with(decoder: Decoder, state: State, new: Sequence[Row], canvas: Canvas) -> CacheState:
    """Returns the cache with slots for new rows."""
    cache = state.cache
    # Rows that join an empty batch may need fewer slots than those that have left.
    num_slots = max([cache.num_slots if state.rows else 0, *(row.end for row in new)])
    if decoder.cache.needs_kv_cache:
        kv_cache = cache.kv_cache
        if kv_cache is None:
            num_rows = cache.capacity * decoder.verifier.num_branches
            allocated = max(num_slots, cache.reserved_slots)
            kv_cache = decoder.model.new_kv_cache(num_rows, allocated).first(num_slots)
        elif not state.rows:
            # None of its slots is in use; `widened` takes as many as the new rows need.
            kv_cache = kv_cache.first(0).widened(num_slots)
        elif kv_cache.num_slots < num_slots:
            kv_cache = kv_cache.widened(num_slots)
        cache = cache._replace(kv_cache=kv_cache, num_slots=num_slots)
    if not decoder.cache.reads_history:
        return cache
    new_rows = History.of(canvas, with_look=decoder.cache_reads_look)
    history = new_rows if cache.history is None else cache.history.joined(new_rows)
    return cache._replace(history=history)


def leave(state: State, rows: Sequence[int]) -> State:
    """Returns the state without some rows. The last rows take their places."""
    if not rows:
        return state
    for row in rows:
        # A hidden slot adds 0 times its value, so NaN would reach the row that takes this place.
        for buffer in state.cache.buffers if state.rows[row].error else ():
            buffer[:, row] = 0.0
    order = list(range(len(state.rows)))
    for row in sorted(rows, reverse=True):
        order[row] = order[-1]
        order.pop()
    if not order:
        return _without_rows(state)
    for place, row in enumerate(order):
        for buffer in state.cache.buffers if place != row else ():
            buffer[:, place] = buffer[:, row]
    index = send(order, state.device)
    return state.take(order)._replace(
        verifier_state=take_state(state.verifier_state, index),
        cache=state.cache._replace(history=take_state(state.cache.history, index)),
        window=None,
        layout=None,
    )


def _without_rows(state: State) -> State:
    """Returns the state before rows join, with its counts and the buffers of its cache."""
    no_rows = state.canvas.take(state.noise_keys[:0])
    empty = State.empty(state.cache.capacity, no_rows, state.decode_number)
    cost = state.cost._replace(drafted=empty.cost.drafted, accepted=empty.cost.accepted)
    cache = state.cache._replace(history=None)
    return empty._replace(cache=cache, cost=cost, num_rounds=state.num_rounds)
