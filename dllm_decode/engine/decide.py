"""Asks the sampler for its decision in one round."""

from collections.abc import Sequence
from typing import Any

from dllm_decode.core.sending import send
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.state import State
from dllm_decode.engine.verifier import Look
from samplers.base import Decision, Sampler
from samplers.calls import first_state, next_step
from samplers.state import merge_state
from samplers.view import View


def decide(decoder: Decoder, state: State, seen: Look) -> tuple[State, Look, Decision]:
    """Asks the sampler for its decision.

    The schedule may narrow the view before the sampler sees it, and add commits afterwards.
    If the verifier has decided already, the sampler is not asked. No row of the state waits.

    Returns:
        The state with the new states of sampler and blocks, the look with the view that the
        sampler was shown, and the decision.
    """
    if seen.decision is not None:
        return state, seen, seen.decision
    openings = [row.opening for row in state.rows]
    is_fresh = [row.is_fresh for row in state.rows]
    view, blocks_state = decoder.blocks.narrowed(seen.view, openings, state.blocks_state)
    sampler_state = state.sampler_state
    if any(is_fresh):
        sampler_state = _begin(decoder.sampler, view, sampler_state, is_fresh)
        rows = tuple(row._replace(is_fresh=False) for row in state.rows)
        state = state._replace(rows=rows)
    decision, sampler_state = next_step(decoder.sampler, view, sampler_state)
    decision = decoder.blocks.with_commits(view, decision, openings)
    state = state._replace(sampler_state=sampler_state, blocks_state=blocks_state)
    return state, seen._replace(view=view), decision


def _begin(sampler: Sampler, view: View, state: Any, is_fresh: Sequence[bool]) -> Any:
    """Returns the sampler's state for the rows of a view, begun anew in fresh rows."""
    initial = first_state(sampler, view)
    if all(is_fresh):
        return initial
    return merge_state(state, initial, send(is_fresh, view.tokens.device))
