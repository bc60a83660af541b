"""Applies a decision to the canvas, within guards that no plug-in can pass."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dllm_decode.core.canvas import Canvas
from dllm_decode.core.rows import Row
from dllm_decode.core.state import State
from dllm_decode.core.window import Window
from dllm_decode.decoder import Decoder, Look
from samplers.base import Decision
from samplers.view import View


def settle(decoder: Decoder, state: State, seen: Look, decision: Decision) -> State:
    """Returns the state after a decision; only the rows that take a step change."""
    canvas, view, window = state.here, seen.view, seen.window
    rows: Sequence[Row] = state.rows
    index: Tensor | None = None
    if seen.rows is not None:
        index = torch.tensor(seen.rows, device=state.device)
        canvas, rows = canvas.take(index), [state.rows[row] for row in seen.rows]
    state = check_decision(decoder, state, seen, decision, window.part(canvas.given))
    canvas = truncated(decoder, rows, settled(decoder, canvas, window, view, decision))
    if index is not None:
        whole = state.here
        tokens = whole.tokens.index_copy(0, index, canvas.tokens)
        unsettled = whole.unsettled.index_copy(0, index, canvas.unsettled)
        canvas = replace(whole, tokens=tokens, unsettled=unsettled)
    return state._replace(canvas=canvas)


def check_decision(
    decoder: Decoder, state: State, seen: Look, decision: Decision, given: Bool[Tensor, "B W"]
) -> State:
    """Returns the state with a breach for each rule that a decision may break.

    Args:
        decoder: The decoder.
        state: The state.
        seen: The view that the sampler was shown, and its rows.
        decision: The sampler's decision.
        given: Columns of the window whose tokens never change.
    """
    commit, view, rows = decision.commit, seen.view, seen.rows
    sampler = decoder.rule if seen.decision is None else decoder.verifier
    allowed, tokens = _writable(decoder, view, decision)
    moves = commit if decision.settle is None else commit | decision.settle
    moves = moves & allowed
    # A step on a full block may only re-mask; `max_steps` bounds the number of such steps.
    moves = moves if decision.remask is None else moves | decision.remask
    idle = ~moves.any(-1)
    move = "commit" if decoder.tokens_are_final else "commit, settle or re-mask"
    duty = f"{move} at least one eligible position of every running row"
    state = state.forbid(idle, sampler, duty, rows)
    where = "masked" if decoder.rule.scope != "block" else "eligible"
    state = state.forbid(commit & ~allowed, sampler, f"commit {where} positions only", rows)
    is_mask = tokens == decoder.model.mask_id
    state = state.forbid(commit & is_mask, sampler, "commit tokens other than [MASK]", rows)
    if decision.settle is not None:
        empty = decision.settle & view.masked & ~commit
        state = state.forbid(empty, sampler, "settle positions only that hold a token", rows)
    if decision.remask is not None:
        open_again = decision.remask & (view.masked | given)
        duty = "re-mask positions only that a sampler committed"
        state = state.forbid(open_again, sampler, duty, rows)
    return state


def _writable(
    decoder: Decoder, view: View, decision: Decision
) -> tuple[Bool[Tensor, "B W"], Int[Tensor, "B W"]]:
    """Returns the columns that a sampler may settle, and the tokens that it would write."""
    allowed = view.eligible if decoder.rule.scope == "block" else view.eligible | view.masked
    return allowed, view.proposal if decision.tokens is None else decision.tokens


def settled(
    decoder: Decoder, canvas: Canvas, window: Window, view: View, decision: Decision
) -> Canvas:
    """Returns the canvas after a decision.

    Only open columns get a token or are settled, columns after the block only by samplers that see
    them; [MASK] is never written; given tokens are neither changed nor re-masked.
    """
    mask_id = decoder.model.mask_id
    allowed, tokens = _writable(decoder, view, decision)
    commit = decision.commit & allowed & (tokens != mask_id)
    written = window.put(canvas.tokens, commit, tokens)
    settles = commit
    if decision.settle is not None:
        settles = decision.settle & allowed & (commit | ~view.masked)
    unsettled = window.put(canvas.unsettled, settles, False)
    if decision.remask is not None:
        open_again = decision.remask & ~view.masked & ~window.part(canvas.given)
        written = window.put(written, open_again, torch.full_like(tokens, mask_id))
        unsettled = window.put(unsettled, open_again, True)
    return replace(canvas, tokens=written, unsettled=unsettled)


def truncated(decoder: Decoder, rows: Sequence[Row], canvas: Canvas) -> Canvas:
    """Returns the canvas in which a committed EOS ends the answer, in rows with this option."""
    asks = [row.request.truncate_at_eos for row in rows]
    if not any(asks):
        return canvas
    where = None if all(asks) else torch.tensor(asks, device=canvas.tokens.device)
    return canvas.truncated(where, keeps_tokens=decoder.edits)
