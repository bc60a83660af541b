"""Applies a decision to the canvas, but never the parts of it that break a rule."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dllm_decode.core.canvas import Canvas
from dllm_decode.core.passes import Window
from dllm_decode.core.rows import Row
from dllm_decode.core.sending import sent
from dllm_decode.core.state import State
from dllm_decode.engine.decoder import Decoder, Look, Verifier
from samplers.base import Decision, Sampler
from samplers.state import put_state, take_state
from samplers.view import View


def settle(decoder: Decoder, state: State, seen: Look, decision: Decision) -> tuple[State, Canvas]:
    """Returns the state after a decision; only the rows that take a step change.

    Returns:
        The state, and the canvas of the rows that took a step with the decision's tokens only:
        without the EOS that the engine writes after a committed EOS.
    """
    canvas, view, window = state.canvas, seen.view, seen.window
    rows: Sequence[Row] = state.rows
    index = seen.row_index
    if index is not None:
        stepping = seen.stepping(len(state.rows))
        canvas, rows = canvas.take(index), [state.rows[row] for row in stepping]
    moves = moves_of(decoder, canvas, window, view, decision)
    culprit = decoder.sampler if seen.decision is None else decoder.verifier
    state = _checked(decoder, state, seen, decision, moves, culprit=culprit)
    before, moved = canvas, _moved(canvas, window, moves)
    canvas = truncated(decoder, rows, moved)
    if state.commits is not None:
        state = _recorded(state, seen, moves, before, canvas)
    if index is not None:
        all_rows = state.canvas
        tokens = all_rows.tokens.index_copy(0, index, canvas.tokens)
        unsettled = all_rows.unsettled.index_copy(0, index, canvas.unsettled)
        canvas = replace(all_rows, tokens=tokens, unsettled=unsettled)
    return state._replace(canvas=canvas), moved


class Moves(NamedTuple):
    """The part of a decision that is carried out.

    Attributes:
        commit: Columns of the window that get a token.
        tokens: The token of each column of the window.
        settle: Columns that are settled.
        remask: Columns that become [MASK] again; `None`: none.
    """

    commit: Bool[Tensor, "B W"]
    tokens: Int[Tensor, "B W"]
    settle: Bool[Tensor, "B W"]
    remask: Bool[Tensor, "B W"] | None


def _recorded(state: State, seen: Look, moves: Moves, before: Canvas, after: Canvas) -> State:
    """Returns the state in which the step's commits are recorded.

    Args:
        state: The state, with commits.
        seen: The rows that take the step.
        moves: The step.
        before: The canvas of those rows before the step.
        after: The canvas of those rows after the step.
    """
    tokens, changed = seen.window.part(after.tokens), before.tokens != after.tokens
    # An EOS may have been written over a token that the step committed.
    commit = moves.commit & (tokens == moves.tokens) & seen.window.part(changed)
    index = seen.row_index
    record = state.commits if index is None else take_state(state.commits, index)
    assert record is not None
    record = record.after(seen.view, seen.window, tokens, commit, changed)
    return state._replace(
        commits=record if index is None else put_state(state.commits, index, record)
    )


def moves_of(
    decoder: Decoder, canvas: Canvas, window: Window, view: View, decision: Decision
) -> Moves:
    """Returns the part of a decision that keeps the rules.

    Only open columns get a token or are settled, columns after the block only by samplers that see
    them; [MASK] is never written; given tokens are neither changed nor re-masked.

    Args:
        decoder: All but the requests.
        canvas: The canvas of the rows in view.
        window: The columns in view.
        view: The view that the sampler was shown.
        decision: The sampler's decision.
    """
    sees_block = decoder.sampler.scope == "block"
    allowed = view.eligible if sees_block else view.eligible | view.masked
    tokens = view.proposal if decision.tokens is None else view.decided(decision.tokens)
    commit = settled = decision.commit & allowed & (tokens != canvas.mask_id)
    if decision.settle is not None:
        settled = decision.settle & allowed & (commit | ~view.masked)
    remask = decision.remask
    if remask is not None:
        remask = remask & ~view.masked & ~window.part(canvas.given)
    return Moves(commit, tokens, settled, remask)


def with_sampler_check(decoder: Decoder, state: State, seen: Look, decision: Decision) -> State:
    """Notes rules that the sampler's decision breaks, for a verifier that changes the decision.

    The look has all rows.
    """
    moves = moves_of(decoder, state.canvas, seen.window, seen.view, decision)
    return _checked(decoder, state, seen, decision, moves, culprit=decoder.sampler)


def _checked(
    decoder: Decoder,
    state: State,
    seen: Look,
    decision: Decision,
    moves: Moves,
    *,
    culprit: Sampler | Verifier,
) -> State:
    """Returns the state with a breach for each part of a decision that breaks a rule."""
    if seen.view.proposed is not None:
        # Where no path was found, [MASK] is proposed.
        no_path = seen.view.proposed == state.canvas.mask_id
        duty = "leave an answer that agrees with the settled tokens"
        state = state.with_breach(no_path, "The constraint", duty, seen.rows)
    where = "masked" if decoder.sampler.scope != "block" else "eligible"
    duty = f"commit {where} positions only, and tokens other than [MASK]"
    state = state.with_breach(decision.commit & ~moves.commit, culprit, duty, seen.rows)
    if decision.tokens is not None:
        is_token = (decision.tokens >= 0) & (decision.tokens < seen.view.vocab_size)
        duty = f"commit tokens of the model only, below {seen.view.vocab_size}"
        state = state.with_breach(moves.commit & ~is_token, culprit, duty, seen.rows)
    if decision.settle is not None:
        empty = decision.settle & seen.view.masked & ~moves.commit
        duty = "settle positions only that hold a token"
        state = state.with_breach(empty, culprit, duty, seen.rows)
    # A step on a full block may only re-mask; `max_steps` bounds the number of such steps.
    moved = moves.commit | moves.settle
    if decision.remask is not None and moves.remask is not None:
        duty = "re-mask positions only that a sampler committed"
        state = state.with_breach(decision.remask & ~moves.remask, culprit, duty, seen.rows)
        moved = moved | moves.remask
    move = "commit" if decoder.tokens_are_final else "commit, settle or re-mask"
    duty = f"{move} at least one eligible position of every running row"
    return state.with_breach(~moved.any(-1), culprit, duty, seen.rows)


def canvas_after(
    decoder: Decoder, canvas: Canvas, window: Window, view: View, decision: Decision
) -> Canvas:
    """Returns the canvas after a decision, see `moves_of`."""
    return _moved(canvas, window, moves_of(decoder, canvas, window, view, decision))


def _moved(canvas: Canvas, window: Window, moves: Moves) -> Canvas:
    tokens = window.put(canvas.tokens, moves.commit, moves.tokens)
    unsettled = window.put(canvas.unsettled, moves.settle, False)
    if moves.remask is not None:
        masks = torch.full_like(moves.tokens, canvas.mask_id)
        tokens = window.put(tokens, moves.remask, masks)
        unsettled = window.put(unsettled, moves.remask, True)
    return replace(canvas, tokens=tokens, unsettled=unsettled)


def truncated(decoder: Decoder, rows: Sequence[Row], canvas: Canvas) -> Canvas:
    """Returns the canvas in which a committed EOS ends the answer, in rows with this option."""
    truncates = [row.config.truncate_at_eos for row in rows]
    if not any(truncates):
        return canvas
    where = None if all(truncates) else sent(truncates, canvas.tokens.device)
    # A sampler that edits tokens, and does not only re-mask them, leaves tokens unsettled.
    edits = not decoder.tokens_are_final and decoder.reads_committed
    return canvas.truncated(where, keeps_tokens=edits)
