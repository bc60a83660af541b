"""The one function that calls the model, and counts."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dllm_decode.caches.base import CacheQuery
from dllm_decode.core.canvas import Canvas, Window
from dllm_decode.core.columns import columns, union, without
from dllm_decode.core.history import History
from dllm_decode.core.rows import Row
from dllm_decode.core.state import Layout, State
from dllm_decode.decoder import Decoder, Drafts, Pass
from dllm_decode.geometry import Frame, Plan, Sight, frames_of
from dllm_decode.inputs import inputs_of, packed_of, part_of, with_room
from dllm_decode.models.base import num_calls, predict_all
from dllm_decode.packing import unpack, with_leave_one_out
from dllm_decode.tempering import truncation_of
from samplers.checks import shown
from samplers.logits.statistics import certain_where


def forward(decoder: Decoder, state: State, wanted: Pass) -> tuple[State, Float[Tensor, "N _ V"]]:
    """Calls the model once, and counts the call.

    Returns:
        The state afterwards, and for each row, or each of the drafts, the logits that predict the
        wanted columns: of banned tokens -inf, truncated as the request says. With `leave_one_out`
        as many columns follow, predicted without being seen.
    """
    model, drafts = decoder.model, wanted.drafts
    plans = _plans(decoder, state, wanted)
    entries = range(len(state.rows)) if drafts is None else drafts.rows
    every = [plans[row] for row in entries]
    states = None if drafts is None else (drafts.rows, drafts.places)
    key = (every, wanted.window.starts, wanted.window.width, states)
    if state.layout is None or state.layout.key != key:
        sight = Sight(
            model.logit_shift,
            model.causal_block_length,
            decoder.cache.needs_kv_cache,
            state.here.tokens.device,
        )
        frames = frames_of(sight, every, _of_entries(wanted, state.here, entries))
        state = state._replace(layout=Layout(key, frames))
    assert state.layout is not None
    frames = state.layout.frames
    state, logits = _run(decoder, state, wanted, frames)
    if decoder.config.cfg_scale:
        blind = _without_given(state, wanted)
        state, unguided = _run(decoder, state, blind, frames)
        logits = unguided + (1.0 + decoder.config.cfg_scale) * (logits - unguided)
    state = _counted(decoder, state, wanted, plans, frames)
    return _finished(decoder, state, wanted, frames, logits)


def _without_given(state: State, wanted: Pass) -> Pass:
    """Returns the same forward on canvases with [MASK] for prompts and given tokens."""
    canvas, drafts = state.here, wanted.drafts
    if drafts is None:
        every = tuple(range(len(canvas)))
        drafts = Drafts(canvas.tokens, every, (0,) * len(every))
    given = canvas.given[torch.tensor(drafts.rows, device=canvas.given.device)]
    hidden = drafts.tokens.masked_fill(given, canvas.mask_id)
    return wanted._replace(drafts=drafts._replace(tokens=hidden))


def _of_entries(wanted: Pass, canvas: Canvas, entries: Sequence[int]) -> Window:
    """Returns the window of each entry of the forward."""
    if wanted.drafts is None:
        return wanted.window
    starts = [wanted.window.starts[row] for row in entries]
    return Window.of(starts, wanted.window.width, canvas)


def _plans(decoder: Decoder, state: State, wanted: Pass) -> list[Plan]:
    """Returns what is computed of each row."""
    blocks = _blocks(decoder, state, wanted)
    if wanted.columns is not None:
        return [
            Plan(own, _end(decoder, row, block[1]))
            for row, block, own in zip(state.rows, blocks, wanted.columns, strict=True)
        ]
    return [
        _plan(decoder, row, block, 0 if wanted.is_first else row.step)
        for row, block in zip(state.rows, blocks, strict=True)
    ]


def _blocks(decoder: Decoder, state: State, wanted: Pass) -> Sequence[tuple[int, int]]:
    """Returns the columns that the cache policy takes for the open block of each row."""
    if wanted.blocks is not None:
        return wanted.blocks
    match decoder.sampler.scope:
        case "block":
            return [row.open.block for row in state.rows]
        case "suffix":
            return [(row.open.block[0], row.end) for row in state.rows]
        case "answer":
            return [(row.first, row.end) for row in state.rows]


def _end(decoder: Decoder, row: Row, stop: int) -> int:
    """Returns the first column that a row's open block does not see."""
    return stop if decoder.model.causal_block_length else row.end


def _plan(decoder: Decoder, row: Row, block: tuple[int, int], step: int) -> Plan:
    """Asks the cache policy; columns that it would leave unwritten are added."""
    cache = decoder.cache
    query = CacheQuery(
        start=block[0],
        stop=block[1],
        open_start=row.open.start,
        open_stop=row.open.stop,
        unsettled=row.unsettled,
        prompt_length=row.prompt_length,
        first_block=row.first,
        row_end=row.end,
        end=_end(decoder, row, block[1]),
        shift=decoder.model.logit_shift,
        step=step,
        previous=row.previous,
        num_forwards=row.nfe,
        numbers=row.told.cache,
    )
    chosen, hidden = cache.recompute(query), cache.hidden(query)
    _require_columns(cache, chosen, query.end)
    if not cache.needs_kv_cache:
        if chosen != columns((0, query.end)):
            raise RuntimeError(
                f"{cache!r} must not give EVERY_COLUMN: of columns (0, {query.end}) its recompute "
                f"returned {chosen!r} alone."
            )
        return Plan(chosen, query.end)
    # A slot holds nothing until its column is computed, so it must not be read before.
    unwritten = without(without(columns((0, query.end)), hidden), row.computed)
    return Plan(union(chosen, unwritten), query.end, hidden)


def _require_columns(cache: object, chosen: object, end: int) -> None:
    """Raises RuntimeError unless a policy returned columns of the forward, in ascending order."""
    is_columns = isinstance(chosen, tuple) and all(isinstance(part, range) for part in chosen)
    bounds: list[int] = []
    for part in chosen if is_columns else ():  # type: ignore[attr-defined]  # checked just before
        bounds += [part.start, part.stop]
    if not bounds or bounds != sorted(bounds) or bounds[0] < 0 or bounds[-1] > end:
        raise RuntimeError(
            f"recompute of {cache!r} must return ranges of columns in ascending order, at least "
            f"one and all within [0, {end}), got {shown(chosen)} ({type(chosen).__name__})."
        )


def _run(
    decoder: Decoder, state: State, wanted: Pass, frames: Sequence[Frame]
) -> tuple[State, Float[Tensor, "N _ V"]]:
    """Calls the model on all groups at once; returns the logits in the order of the entries."""
    model, drafts = decoder.model, wanted.drafts
    state = with_room(state, drafts, frames)
    tokens = state.here.tokens if drafts is None else drafts.tokens
    inputs, packs = [], []
    for frame in frames:
        one = inputs_of(state, wanted, frame, tokens)
        one = with_leave_one_out(one, model.mask_id) if wanted.leave_one_out else one
        if drafts is not None and drafts.in_columns:
            one, packed = packed_of(state, drafts, frame, one)
            packs.append(packed)
        inputs.append(one)
    found = predict_all(model, inputs)
    if packs:
        found = [unpack(logits, *packed) for logits, packed in zip(found, packs, strict=True)]
    cost = state.cost._replace(forwards=state.cost.forwards + num_calls(model, inputs))
    state = state._replace(cost=cost)
    if len(frames) == 1:
        return state, found[0]
    order = torch.cat([frame.places for frame in frames if frame.places is not None]).argsort()
    return state, torch.cat(found)[order]


def _counted(
    decoder: Decoder, state: State, wanted: Pass, plans: Sequence[Plan], frames: Sequence[Frame]
) -> State:
    """Returns the state in which the forward is counted for each row that took part."""
    drafts, num_passes = wanted.drafts, 2 if decoder.config.cfg_scale else 1
    states: dict[int, int] = {}
    for frame in frames:
        numbers = [entry if drafts is None else drafts.rows[entry] for entry in frame.entries]
        depth = 1
        if drafts is not None and drafts.in_columns:
            depth = 1 + max(drafts.places[entry] for entry in frame.entries)
            numbers = list(dict.fromkeys(numbers))
        for number in numbers:
            own = plans[number].width + (wanted.window.width if wanted.leave_one_out else 0)
            states[number] = states.get(number, 0) + depth * own
    rows = list(state.rows)
    blocks = _blocks(decoder, state, wanted)
    shift = decoder.model.logit_shift
    for number, num_columns in states.items():
        row, plan = rows[number], plans[number]
        rows[number] = row._replace(
            nfe=row.nfe + num_passes,
            query_positions=row.query_positions + num_passes * num_columns,
            step=row.step + 1,
            previous=max(0, blocks[number][0] - shift),
            computed=union(row.computed, plan.columns),
        )
    cache = state.cache._replace(history=_noted(state, drafts, frames))
    return state._replace(rows=tuple(rows), cache=cache)


def _noted(state: State, drafts: Drafts | None, frames: Sequence[Frame]) -> History | None:
    """Returns the history after a forward; only the first draft of a row leaves a trace."""
    history = state.cache.history
    if history is None:
        return None
    for frame in frames:
        kept = [
            n for n, entry in enumerate(frame.entries) if not drafts or not drafts.places[entry]
        ]
        entries = [frame.entries[n] for n in kept]
        rows = entries if drafts is None else [drafts.rows[entry] for entry in entries]
        index = torch.tensor(rows, device=state.keys.device)
        history = history.noted(state.here, index, frame.positions[kept])
    return history


def _finished(
    decoder: Decoder,
    state: State,
    wanted: Pass,
    frames: Sequence[Frame],
    logits: Float[Tensor, "N _ V"],
) -> tuple[State, Float[Tensor, "N _ V"]]:
    """Returns logits as samplers may see them: checked, banned, truncated, and certain where a
    column is not predicted because it is settled.
    """  # noqa: D205
    state = require_finite(state, logits, decoder.model.name)
    logits = logits.index_fill_(-1, on_device(banned_ids(decoder), logits.device), -torch.inf)
    drafts = wanted.drafts
    rows = state.rows if drafts is None else [state.rows[row] for row in drafts.rows]
    truncation = truncation_of(decoder, rows, logits.device)
    logits = logits if truncation is None else truncation(logits)
    known = _known(frames)
    if known is None:
        return state, logits
    window = _of_entries(wanted, state.here, range(len(rows)) if drafts is None else drafts.rows)
    if drafts is None:
        is_open = window.part(state.here.unsettled)
        is_open = is_open if window.open is None else is_open & window.open
        duty = "compute every column that predicts an open position"
        state = state.forbid(~known & is_open, decoder.cache, duty)
    tokens = window.part(state.here.tokens if drafts is None else drafts.tokens)
    known, tokens = part_of(known, wanted.asked), part_of(tokens, wanted.asked)
    return state, certain_where(logits, ~known, tokens)


def _known(frames: Sequence[Frame]) -> Bool[Tensor, "N W"] | None:
    """Returns where the window is predicted by a computed column; `None`: everywhere."""
    if all(frame.known is None for frame in frames):
        return None
    parts = [
        torch.ones_like(frame.wanted, dtype=torch.bool) if frame.known is None else frame.known
        for frame in frames
    ]
    if len(frames) == 1:
        return parts[0]
    order = torch.cat([frame.places for frame in frames if frame.places is not None]).argsort()
    return torch.cat(parts)[order]


def require_finite(state: State, logits: Float[Tensor, "N _ V"], culprit: str) -> State:
    """Notes NaN and infinity; a token may be impossible, but not all tokens of a column."""
    # A sum is five times faster than a maximum, and only a CPU can be asked without waiting.
    if logits.device.type == "cpu" and logits.sum(-1).isfinite().all():
        return state
    duty = "give logits without NaN or infinity"
    return state.forbid(~logits.amax(-1).isfinite(), culprit, duty)


def banned_ids(decoder: Decoder) -> tuple[int, ...]:
    """Returns the tokens that are never proposed, in ascending order."""
    model = decoder.model
    return tuple(sorted({model.mask_id, *model.banned_ids, *decoder.config.banned_ids}))


@lru_cache(maxsize=64)
def on_device(ids: tuple[int, ...], device: torch.device) -> Int[Tensor, " N"]:
    """Returns token ids on a device; they are sent there once."""
    return torch.tensor(ids, dtype=torch.long, device=device)
