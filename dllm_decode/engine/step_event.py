"""Builds the event that observers see after a step."""

from collections.abc import Sequence

from dllm_decode.core.canvas import Canvas
from dllm_decode.core.observers import StepEvent
from dllm_decode.core.sending import send
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.state import State
from dllm_decode.engine.verifier import Look


def event_of(
    decoder: Decoder,
    state: State,
    seen: Look,
    before: Canvas,
    moved: Canvas,
    stepping: Sequence[int],
    done: Sequence[int],
) -> StepEvent:
    """Returns the event that observers see: the rows that took a step, before and after it.

    `before` and `moved` are canvases of these rows; `moved` has the decision's tokens only.
    """
    part = state.take(stepping)
    numbers = [
        (row.request.index, row.query_positions, n in done)
        for n, row in zip(stepping, part.rows, strict=True)
    ]
    # One tensor, because each tensor needs a copy to the device.
    request_indices, query_positions, ended = send(numbers, state.device).unbind(-1)
    after = part.canvas
    filled = after.tokens != moved.tokens
    if done:
        rest = after.unsettled & ended.bool()[:, None]
        after, filled = after.with_eos(rest), filled | rest
    return StepEvent(
        before=before,
        after=after,
        eos_filled=filled,
        view=seen.view,
        rows=part.rows,
        ended=ended.bool(),
        is_final=decoder.tokens_are_final,
        decode_number=state.decode_number,
        request_indices=request_indices,
        forwards=state.cost.forwards,
        query_positions=query_positions,
        drafted=part.cost.drafted,
        accepted=part.cost.accepted,
    )
