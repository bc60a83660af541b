"""Applies a decision to the canvas, but never the parts of it that break a rule."""

from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from dllm_decode.core.canvas import Canvas
from dllm_decode.core.sending import send
from dllm_decode.core.window import Window
from dllm_decode.engine.commit_state import CommitState
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.state import State
from dllm_decode.engine.verifier import Look, Verifier
from samplers.base import Decision, Sampler
from samplers.view import View


def settle(decoder: Decoder, state: State, seen: Look, decision: Decision) -> tuple[State, Canvas]:
    """Returns the state after a decision; no row of it waits.

    Returns:
        The state, and the canvas with the decision's tokens only: without the EOS that the engine
        writes after a committed EOS.
    """
    moves = _moves_of(decoder, state, seen, decision)
    culprit = decoder.sampler if seen.decision is None else decoder.verifier
    state = _with_breaches(decoder, state, seen, decision, moves, culprit=culprit)
    before = state.canvas
    moved = _move(state.canvas, seen.window, moves)
    state = end_at_eos(decoder, state._replace(canvas=moved))
    if state.commits is not None:
        state = _record(state, state.commits, seen, moves, before)
    return state, moved


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


def _moves_of(decoder: Decoder, state: State, seen: Look, decision: Decision) -> Moves:
    """Returns the part of a decision that keeps the rules.

    Only open columns get a token or are settled, columns after the block only by samplers that see
    them; [MASK] is never written; given tokens are neither changed nor re-masked.

    Args:
        decoder: The decoder.
        state: The rows in view.
        seen: The view that the sampler was shown, and its window.
        decision: The decision of the sampler, or of the verifier in its place.
    """
    view = seen.view
    allowed = view.eligible if decoder.sampler_sees_block_only else view.eligible | view.masked
    tokens = view.proposal if decision.tokens is None else view.tokens_to_write(decision.tokens)
    if decoder.is_uniform_state and decision.settle is not None and decision.tokens is not None:
        # A constraint decides the tokens of a block of noise only when the block is settled.
        tokens = torch.where(decision.settle, tokens, decision.tokens)
    commit = settled = decision.commit & allowed & (tokens != state.canvas.mask_id)
    if decision.settle is not None:
        settled = decision.settle & allowed & (commit | ~view.masked)
    remask = decision.remask
    if remask is not None:
        own = state.canvas.after_prompt & ~state.canvas.given
        remask = remask & ~view.masked & seen.window.part(own)
    return Moves(commit, tokens, settled, remask)


def _with_breaches(
    decoder: Decoder,
    state: State,
    seen: Look,
    decision: Decision,
    moves: Moves,
    *,
    culprit: Sampler | Verifier,
) -> State:
    """Returns the state with a breach for each part of a decision that breaks a rule."""
    if seen.view.forced_tokens is not None:
        # Where no path was found, [MASK] is forced.
        no_path = seen.view.forced_tokens == state.canvas.mask_id
        duty = "leave an answer that agrees with the settled tokens"
        state = state.with_breach(no_path, "The constraint", duty)
    where = "eligible" if decoder.sampler_sees_block_only else "masked"
    duty = f"commit {where} positions only, and tokens other than [MASK]"
    state = state.with_breach(decision.commit & ~moves.commit, culprit, duty)
    if decision.tokens is not None:
        is_token = (decision.tokens >= 0) & (decision.tokens < seen.view.vocab_size)
        duty = f"commit tokens of the model only, below {seen.view.vocab_size}"
        state = state.with_breach(moves.commit & ~is_token, culprit, duty)
    if decision.settle is not None:
        empty = decision.settle & seen.view.masked & ~moves.commit
        duty = "settle positions only that hold a token"
        state = state.with_breach(empty, culprit, duty)
    # A step on a full block may only re-mask; `max_steps` bounds the number of such steps.
    is_moved = moves.commit | moves.settle
    if decision.remask is not None and moves.remask is not None:
        duty = "re-mask positions only that a sampler committed"
        state = state.with_breach(decision.remask & ~moves.remask, culprit, duty)
        is_moved = is_moved | moves.remask
    move = "commit" if decoder.tokens_are_final else "commit, settle or re-mask"
    duty = f"{move} at least one eligible position of every running row"
    return state.with_breach(~is_moved.any(-1), culprit, duty)


def _move(canvas: Canvas, window: Window, moves: Moves) -> Canvas:
    tokens = window.put(canvas.tokens, moves.commit, moves.tokens)
    unsettled = window.put(canvas.unsettled, moves.settle, False)
    if moves.remask is not None:
        masks = torch.full_like(moves.tokens, canvas.mask_id)
        tokens = window.put(tokens, moves.remask, masks)
        unsettled = window.put(unsettled, moves.remask, True)
    return replace(canvas, tokens=tokens, unsettled=unsettled)


def end_at_eos(decoder: Decoder, state: State) -> State:
    """Returns the state in which a committed EOS ends the answer, in rows with this option."""
    truncates = [row.config.truncate_at_eos for row in state.rows]
    if not any(truncates):
        return state
    # A sampler that edits tokens, and does not only re-mask them, leaves tokens unsettled.
    edits = not decoder.tokens_are_final and decoder.sampler_reads_committed
    canvas = state.canvas.truncated(send(truncates, state.device), keeps_tokens=edits)
    return state._replace(canvas=canvas)


def _record(state: State, commits: CommitState, seen: Look, moves: Moves, before: Canvas) -> State:
    """Returns the state after a step, with the commits of the step; `before`: without the step."""
    tokens = seen.window.part(state.canvas.tokens)
    changed = before.tokens != state.canvas.tokens
    # An EOS may have been written over a token that the step committed.
    commit = moves.commit & (tokens == moves.tokens) & seen.window.part(changed)
    commits = commits.after(seen.window, seen.view, tokens, commit, changed)
    return state._replace(commits=commits)


def with_decision(
    decoder: Decoder, state: State, window: Window, view: View, decision: Decision
) -> State:
    """Returns the state with the tokens of a decision: no breaches, commits or EOS are noted."""
    moves = _moves_of(decoder, state, Look(view, window), decision)
    return state._replace(canvas=_move(state.canvas, window, moves))


def note_sampler_breaches(decoder: Decoder, state: State, seen: Look, decision: Decision) -> State:
    """Notes rules that the sampler's decision breaks, for a verifier that changes the decision.

    No row waits.
    """
    moves = _moves_of(decoder, state, seen, decision)
    return _with_breaches(decoder, state, seen, decision, moves, culprit=decoder.sampler)
