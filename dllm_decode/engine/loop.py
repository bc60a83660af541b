"""The one loop: rows join, take steps and leave, at any round."""

from collections.abc import Iterator, Sequence
from itertools import count

import torch

from dllm_decode.core.observers import Observer
from dllm_decode.core.requests import RequestQueue
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.ended import EndedRequest, outputs_of, rows_answered_by_template
from dllm_decode.engine.join import join, leave, new_canvas
from dllm_decode.engine.round import one_round
from dllm_decode.engine.state import State
from samplers.checks import require_integer, shown

_DECODE_NUMBERS = count()


def run(
    decoder: Decoder,
    queue: RequestQueue,
    num_rows: int,
    observers: Sequence[Observer] = (),
) -> Iterator[EndedRequest]:
    """Answers requests, and yields each as soon as it has ended; arguments as in `rounds`."""
    for ended in rounds(decoder, queue, num_rows, observers):
        yield from ended


def rounds(
    decoder: Decoder,
    queue: RequestQueue,
    num_rows: int,
    observers: Sequence[Observer] = (),
    *,
    reserved_slots: int = 0,
) -> Iterator[list[EndedRequest]]:
    """Answers requests, at most `num_rows` at a time; yields after each round those that ended.

    Requests may be put into the queue or cancelled between two rounds. The iterator ends when no
    request is left. A request in whose row a decision or the logits broke a rule, as by NaN, ends
    with `EndedRequest.error`; the other requests do not change. A plug-in that returns a value of a
    wrong kind, such as columns that are no ranges, ends all of them with a RuntimeError.

    Args:
        decoder: As `new_decoder` returns it.
        queue: The requests.
        num_rows: Rows of a forward, at most.
        observers: Called after each round.
        reserved_slots: Length of the longest row to come, prompt included: keys and values are
            allocated for this many tokens at once. With 0 they are copied whenever a longer row
            joins.
    """
    require_integer("num_rows", num_rows, least=1)
    require_observers(observers)
    with torch.inference_mode():
        state = State.empty(
            num_rows, new_canvas(decoder, ()), next(_DECODE_NUMBERS), reserved_slots
        )
    while True:
        indices = [row.request.index for row in state.rows]
        cancelled = queue.take_cancelled(indices)
        cancelled_rows = [number for number, index in enumerate(indices) if index in cancelled]
        taken = queue.take(num_rows - len(state.rows) + len(cancelled_rows))
        # Not around the yield: the caller's code must not run in inference mode.
        with torch.inference_mode():
            state = leave(state, cancelled_rows)
            state = join(decoder, state, taken)
            state, ended = _remove_ended(state, rows_answered_by_template(state, len(taken)))
            if not state.rows and not taken:
                return
            if state.rows:
                state, done = one_round(decoder, state, observers)
                state, more = _remove_ended(state, done)
                ended += more
        yield ended


def require_observers(observers: object) -> None:
    """Raises ValueError unless observers are a sequence of functions."""
    if not isinstance(observers, Sequence) or not all(map(callable, observers)):
        raise ValueError(
            "observers must be a sequence of functions that take a StepEvent, such as [watch], got "
            f"{shown(observers)}."
        )


def _remove_ended(state: State, rows: Sequence[int]) -> tuple[State, list[EndedRequest]]:
    """Removes rows that have ended; returns the state without them, and their answers."""
    return leave(state, rows), outputs_of(state, rows)
