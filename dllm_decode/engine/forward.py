"""The one function by which the loop calls the model; it counts the calls."""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dllm_decode.caches.base import CacheQuery
from dllm_decode.caches.history import History
from dllm_decode.core.canvas import Canvas
from dllm_decode.core.columns import Columns, in_whole_blocks, union, without
from dllm_decode.core.model import num_calls, predict_all
from dllm_decode.core.passes import Branches, Pass, part_of
from dllm_decode.core.sending import send
from dllm_decode.core.window import Window
from dllm_decode.engine.checks import require_branches, require_columns, require_hidden
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.inputs import inputs_of
from dllm_decode.engine.layout import Layout, Plan
from dllm_decode.engine.packing import pack, unpack, with_room
from dllm_decode.engine.state import State
from samplers.logits.statistics import certain_where


def forward(decoder: Decoder, state: State, pass_: Pass) -> tuple[State, Float[Tensor, "N _ V"]]:
    """Runs the model once, with guidance twice, and counts its calls.

    Returns:
        The state afterwards, and for each row, or each of the branches, the logits that predict the
        columns of `pass_`: -inf for banned tokens, before `top_p` and `top_k`.
    """
    branches = pass_.branches or Branches.of_rows(state.canvas)
    plans = _plans(decoder, state, pass_)
    call = _Call(pass_, branches, plans, _layout(decoder, state, pass_, branches, plans))
    if pass_.branches is not None:
        require_branches(decoder, state, branches)
        state = with_room(state, branches, call.layout)
    state, logits = _run(decoder, state._replace(layout=call.layout), call)
    if decoder.config.cfg_scale:
        state, logits = _guide(decoder, state, call, logits)
    state = _count(decoder, state, call)
    if state.cache.history is not None:
        state = _with_history(state, state.cache.history, call)
    predicted = call.layout.predicted()
    state = _note_breaches(decoder, state, call, logits, predicted)
    logits = logits.index_fill_(-1, ids_on_device(decoder.banned_ids, logits.device), -torch.inf)
    return state, logits if predicted is None else _fill_unpredicted(call, logits, predicted)


class _Call(NamedTuple):
    """A forward that is ready to run.

    Attributes:
        pass_: Description of the forward.
        branches: The canvases that the forward looks at.
        plans: The columns of each row of the state.
        layout: The columns of each branch.
    """

    pass_: Pass
    branches: Branches
    plans: Sequence[Plan]
    layout: Layout


def _plans(decoder: Decoder, state: State, pass_: Pass) -> list[Plan]:
    """Returns the plan of each row, with the columns of `pass_` or of the cache policy."""
    sight = decoder.sight
    plans = []
    if pass_.columns and not sight.with_kv_cache:
        raise RuntimeError(
            f"columns of Pass must be empty with {decoder.cache!r}, which computes all of them."
        )
    for n, row in enumerate(pass_.policy_rows or state.rows):
        end = row.end if sight.sees_later_blocks else row.opening.block[1]
        query = CacheQuery(row, end, sight.shift)
        hidden: Columns = ()
        if pass_.columns:
            chosen = pass_.columns[n]
        else:
            chosen = decoder.cache.columns_to_compute(query)
            hidden = require_hidden(decoder, decoder.cache.hidden(query), end)
        require_columns(decoder, chosen, end, by_verifier=bool(pass_.columns))
        if sight.with_kv_cache:
            # A slot holds nothing, and must not be read, until its column is computed.
            unwritten = without(without((range(end),), hidden), row.computed)
            chosen = union(chosen, unwritten)
        plan = Plan(chosen, end, query.first_needed, hidden)
        if sight.routing_block_length > 1:
            plan = plan._replace(
                columns=in_whole_blocks(chosen, sight.routing_block_length),
                round_to=sight.routing_block_length,
            )
        plans.append(plan)
    return plans


def _layout(
    decoder: Decoder, state: State, pass_: Pass, branches: Branches, plans: Sequence[Plan]
) -> Layout:
    """Returns the layout of a forward; reuses the last layout if the columns are the same."""
    window = pass_.window
    branch_plans = [plans[row] for row in branches.rows]
    starts = tuple(window.starts[row] for row in branches.rows)
    key = Layout.key_of(branch_plans, starts, window.width)
    if state.layout is not None and state.layout.key == key:
        return state.layout
    if pass_.branches is not None:
        window = Window.of(starts, window.width, state.canvas)
    return Layout.of(key, decoder.sight, branch_plans, window)


def _without_given(canvas: Canvas, branches: Branches) -> Branches:
    """Returns the branches with [MASK] for prompts and given tokens."""
    given = canvas.given[send(branches.rows, canvas.given.device)]
    return branches._replace(tokens=branches.tokens.masked_fill(given, canvas.mask_id))


def _run(decoder: Decoder, state: State, call: _Call) -> tuple[State, Float[Tensor, "N _ V"]]:
    """Calls the model on all groups at once; returns the logits in the order of the branches."""
    model, branches = decoder.model, call.branches
    inputs, packings = [], []
    for group in call.layout.groups:
        group_inputs = inputs_of(state, call.pass_, branches, group)
        group_inputs = call.pass_.edit(group_inputs, group.members)
        if branches.in_columns:
            group_inputs, packing = pack(state, branches, group, group_inputs)
            packings.append(packing)
        inputs.append(group_inputs)
    results = predict_all(model, inputs)
    if packings:
        results = [
            unpack(logits, packing) for logits, packing in zip(results, packings, strict=True)
        ]
    cost = state.cost._replace(forwards=state.cost.forwards + num_calls(model, inputs))
    return state._replace(cost=cost), call.layout.merge(results)


def _guide(
    decoder: Decoder, state: State, call: _Call, logits: Float[Tensor, "N _ V"]
) -> tuple[State, Float[Tensor, "N _ V"]]:
    """Runs the second forward of classifier-free guidance; returns the guided logits."""
    unprompted = _without_given(state.canvas, call.branches)
    state, unguided = _run(decoder, state, call._replace(branches=unprompted))
    guided = unguided + (1.0 + decoder.config.cfg_scale) * (logits - unguided)
    # Guidance of -inf may give NaN or infinity; such a token keeps its logit with the prompt.
    return state, torch.where(logits.isneginf() | unguided.isneginf(), logits, guided)


def _count(decoder: Decoder, state: State, call: _Call) -> State:
    """Returns the state in which the forward is counted for each row that took part."""
    calls_per_forward = decoder.calls_per_forward
    num_columns: Counter[int] = Counter()
    for group in call.layout.groups:
        for n in call.branches.rows_and_branches(group.members)[0]:
            num_columns[n] += call.plans[n].width
    writers = call.branches.writers
    rows = list(state.rows)
    for n, num_computed in num_columns.items():
        row, plan = rows[n], call.plans[n]
        rows[n] = row = row._replace(
            nfe=row.nfe + calls_per_forward,
            query_positions=row.query_positions + calls_per_forward * num_computed,
        )
        if n in writers:
            rows[n] = row._replace(
                period_forwards=row.period_forwards + 1,
                previous_first_needed=plan.first_needed,
                computed=union(row.computed, plan.columns),
            )
    return state._replace(rows=tuple(rows))


def _with_history(state: State, history: History, call: _Call) -> State:
    """Returns the state whose history has the columns that branch 0 of each row computed."""
    for group in call.layout.groups:
        rows, branch_numbers = call.branches.rows_and_branches(group.members)
        pairs = [(n, rows[n]) for n, branch in enumerate(branch_numbers) if branch == 0]
        members, index = send(pairs, state.device, torch.long).view(-1, 2).unbind(-1)
        history = history.noted(state.canvas, index, group.columns[members])
    return state._replace(cache=state.cache._replace(history=history))


def _note_breaches(
    decoder: Decoder,
    state: State,
    call: _Call,
    logits: Float[Tensor, "N _ V"],
    predicted: Bool[Tensor, "N W"] | None,
) -> State:
    """Notes rules that the verifier, the model or the cache policy broke; the first one counts."""
    state = _note_unseen(decoder, state, call)
    state = note_not_finite(state, logits, decoder.model.name, call.branches.rows)
    if predicted is None or call.pass_.branches is not None:
        return state
    return _note_unpredicted(decoder, state, call.pass_.window, predicted)


def _note_unseen(decoder: Decoder, state: State, call: _Call) -> State:
    """Notes rows whose window has open columns after the block that the model sees."""
    if decoder.sight.sees_later_blocks:
        return state
    window = call.pass_.window
    rows = set(call.branches.rows)
    limits = [
        plan.end if n in rows and plan.end < row.end else start + window.width
        for n, (row, plan, start) in enumerate(
            zip(state.rows, call.plans, window.starts, strict=True)
        )
    ]
    lengths = [limit - start for limit, start in zip(limits, window.starts, strict=True)]
    if min(lengths) >= window.width:
        return state
    offsets = torch.arange(window.width, device=state.device)
    is_open = window.part(state.canvas.unsettled) & window.open
    is_unseen = is_open & (offsets >= send(lengths, state.device)[:, None])
    duty = (
        "pass policy_rows whose open block has all open columns of the window, because a "
        "block-causal model computes no column after this block"
    )
    return state.with_breach(is_unseen, decoder.verifier, duty)


def _note_unpredicted(
    decoder: Decoder, state: State, window: Window, predicted: Bool[Tensor, "B W"]
) -> State:
    """Notes rows whose cache policy leaves out columns that predict open positions."""
    is_open = window.part(state.canvas.unsettled) & window.open
    is_broken = ~predicted & is_open
    duty = "compute every column that predicts an open position, from query.first_needed on"
    if decoder.cache_narrows:
        is_broken = ~(predicted & is_open).any(-1)
        duty = "compute a column that predicts an open position"
    return state.with_breach(is_broken, decoder.cache, duty)


def _fill_unpredicted(
    call: _Call, logits: Float[Tensor, "N n V"], predicted: Bool[Tensor, "N W"]
) -> Float[Tensor, "N n V"]:
    """Returns logits that are certain of the token in columns that no computed column predicts."""
    predicted, tokens = (
        part_of(values, call.pass_.offsets)
        for values in (predicted, call.layout.window.part(call.branches.tokens))
    )
    return certain_where(logits, ~predicted, tokens)


def note_not_finite(
    state: State,
    logits: Float[Tensor, "N _ V"],
    culprit: str,
    rows: Sequence[int] = (),
) -> State:
    """Notes columns with NaN or infinity; some tokens of a column may be at -inf, but not all."""
    # A sum is five times faster than a maximum; on a GPU this check would wait for the device.
    if logits.device.type == "cpu" and logits.sum(-1).isfinite().all():
        return state
    duty = "give logits without NaN or infinity"
    return state.with_breach(~logits.amax(-1).isfinite(), culprit, duty, rows)


@lru_cache(maxsize=64)
def ids_on_device(ids: tuple[int, ...], device: torch.device) -> Int[Tensor, " N"]:
    """Returns token ids on a device; cached, so that each tuple is sent there once."""
    return send(ids, device, torch.long)
