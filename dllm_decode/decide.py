"""Asks the sampler for its decision in one round."""

from typing import Any

import torch

from dllm_decode.core.state import State
from dllm_decode.decoder import Decoder, Look
from samplers.base import Decision, Sampler, first_state, next_step
from samplers.state import merge_state, pad_state, put_state, take_state
from samplers.view import View


def decide(decoder: Decoder, state: State, seen: Look) -> tuple[State, Look, Decision]:
    """Asks the sampler for its decision, between the schedule's two hooks.

    A verifier may have done so already; then the look has a decision.

    Returns:
        The state with the new states of sampler and schedule, the look with the view that the
        sampler was shown, and the decision.
    """
    if seen.decision is not None:
        return state, seen, seen.decision
    stepping = seen.stepping(len(state.rows))
    openings = [state.rows[n].opening for n in stepping]
    view, schedule = decoder.schedule.narrowed(seen.view, openings, _taken(state.schedule, seen))
    decision, sampler = next_step(decoder.sampler, view, _begun(decoder.sampler, state, seen, view))
    decision = decoder.schedule.with_commits(view, decision, openings)
    rows = list(state.rows)
    for n in stepping:
        if rows[n].is_fresh:
            rows[n] = rows[n]._replace(is_fresh=False)
    state = state._replace(
        sampler=_put(state.sampler, sampler, seen, len(rows)),
        schedule=_put(state.schedule, schedule, seen, len(rows)),
        rows=tuple(rows),
    )
    return state, seen._replace(view=view), decision


def _taken(held: Any, seen: Look) -> Any:
    """Returns a plug-in's state for the rows that take a step."""
    if seen.rows is None or held is None:
        return held
    return take_state(held, torch.tensor(seen.rows, device=seen.view.tokens.device))


def _put(held: Any, after: Any, seen: Look, num_rows: int) -> Any:
    """Returns a plug-in's state for all rows, given that of the rows that took a step."""
    if seen.rows is None or after is None:
        return after
    index = torch.tensor(seen.rows, device=seen.view.tokens.device)
    held = pad_state(take_state(after, index[:0]), num_rows) if held is None else held
    return put_state(held, index, after)


def _begun(sampler: Sampler, state: State, seen: Look, view: View) -> Any:
    """Returns the sampler's state for the rows of a view, begun anew in fresh rows."""
    is_fresh = [state.rows[n].is_fresh for n in seen.stepping(len(state.rows))]
    held = _taken(state.sampler, seen)
    if not any(is_fresh):
        return held
    begun = first_state(sampler, view)
    if all(is_fresh) or held is None:
        return begun
    return merge_state(held, begun, torch.tensor(is_fresh, device=state.device))
