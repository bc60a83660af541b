"""Asks the sampler for its decision in one round."""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Int
from torch import Tensor

from dllm_decode.core.sending import sent
from dllm_decode.core.state import State
from dllm_decode.engine.decoder import Decoder, Look
from samplers.base import Decision, Sampler
from samplers.state import merge_state, pad_state, put_state, take_state
from samplers.view import View


def decide(decoder: Decoder, state: State, seen: Look) -> tuple[State, Look, Decision]:
    """Asks the sampler for its decision.

    The schedule may narrow the view before the sampler sees it, and add commits afterwards.
    If the verifier has decided already, the sampler is not asked.

    Returns:
        The state with the new states of sampler and schedule, the look with the view that the
        sampler was shown, and the decision.
    """
    if seen.decision is not None:
        return state, seen, seen.decision
    stepping = seen.stepping(len(state.rows))
    openings = [state.rows[n].opening for n in stepping]
    is_fresh = [state.rows[n].is_fresh for n in stepping]
    index = seen.row_index
    states = state.sampler, state.schedule
    sampler, schedule = states if index is None else take_state(states, index)
    view, schedule = decoder.schedule.narrowed(seen.view, openings, schedule)
    if any(is_fresh):
        sampler = _begun(decoder.sampler, view, sampler, is_fresh)
    decision, sampler = decoder.sampler.step(view, sampler)
    decision = decoder.schedule.with_commits(view, decision, openings)
    rows = list(state.rows)
    for n in stepping:
        if rows[n].is_fresh:
            rows[n] = rows[n]._replace(is_fresh=False)
    if index is not None:
        sampler, schedule = (
            _put(before, after, index, len(rows))
            for before, after in zip(states, (sampler, schedule), strict=True)
        )
    state = state._replace(sampler=sampler, schedule=schedule, rows=tuple(rows))
    return state, seen._replace(view=view), decision


def _put(before: Any, after: Any, index: Int[Tensor, " N"], num_rows: int) -> Any:
    """Returns a plug-in's state for all rows, updated in the rows that took a step."""
    if before is None and after is not None:
        before = pad_state(take_state(after, index[:0]), num_rows)
    return put_state(before, index, after)


def _begun(sampler: Sampler, view: View, state: Any, is_fresh: Sequence[bool]) -> Any:
    """Returns the sampler's state for the rows of a view, begun anew in fresh rows."""
    initial = sampler.init(view)
    if all(is_fresh) or state is None:
        return initial
    return merge_state(state, initial, sent(is_fresh, view.tokens.device))
