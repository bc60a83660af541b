"""A look at the model: one forward, and the sampler's view of its logits."""

from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from dllm_decode.core.passes import Edit, Pass, keep_inputs
from dllm_decode.core.sending import send
from dllm_decode.core.sizes import round_up
from dllm_decode.core.window import Window
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.forward import forward
from dllm_decode.engine.state import State
from dllm_decode.engine.verifier import Look
from dllm_decode.engine.views import view_of

# Numbers of logit columns are rounded up to a multiple of this, so that there are few shapes.
_LOGIT_STRIDE = 8


def look(decoder: Decoder, state: State, *, edit: Edit = keep_inputs) -> tuple[State, Look]:
    """Runs one forward and returns the sampler's view of every row.

    Args:
        decoder: The decoder.
        state: The rows.
        edit: As in `Pass`.
    """
    state, window = with_window(decoder, state)
    offsets = _offsets_to_predict(decoder, state, window)
    state, logits = forward(decoder, state, Pass(window, offsets, edit=edit))
    if decoder.cache_narrows:
        window = _narrow(state, window)
    view = view_of(decoder, state, window, logits, offsets=offsets)
    history = state.cache.history
    if decoder.cache_reads_look and history is not None:
        history = history._replace(looked=history.last_look.after(state.canvas, window, view))
        state = state._replace(cache=state.cache._replace(history=history))
    return state, Look(view, window)


def _narrow(state: State, window: Window) -> Window:
    """Returns the window with only those columns open that the last forward predicted."""
    predicted = None if state.layout is None else state.layout.predicted()
    if predicted is None:
        return window
    return replace(window, open=predicted & window.open)


def with_window(decoder: Decoder, state: State) -> tuple[State, Window]:
    """Returns the state that keeps the window that the sampler sees, and this window."""
    if state.window is not None:
        return state, state.window
    sees_answer = decoder.sampler.scope == "answer"
    starts = [row.blocks_start if sees_answer else row.opening.phase[0] for row in state.rows]
    window = Window.of(starts, decoder.window_length, state.canvas)
    window = window.with_open([row.opening.bounds for row in state.rows], state.device)
    return state._replace(window=window), window


def _offsets_to_predict(
    decoder: Decoder, state: State, window: Window
) -> Int[Tensor, "B N"] | None:
    """Returns offsets of the window's columns whose logits are read; `None`: all.

    On a CPU, each row has its unsettled open columns first, then others: equally many in all rows.
    """
    if decoder.sampler_reads_committed or not decoder.sampler_sees_block_only:
        return None
    unsettled = window.part(state.canvas.unsettled) & window.open
    if unsettled.device.type != "cpu":
        # The host would wait for the device to learn which columns are unsettled.
        return _open_range(state, window)
    num_read = round_up(int(unsettled.sum(-1).max()), _LOGIT_STRIDE)
    if num_read >= window.width:
        return None
    return unsettled.sort(dim=-1, descending=True, stable=True).indices[:, :num_read]


def _open_range(state: State, window: Window) -> Int[Tensor, "B N"] | None:
    """Returns offsets of a range with all open columns of each row; `None`: the whole window."""
    bounds = [row.opening.bounds for row in state.rows]
    width = round_up(max(stop - start for start, stop in bounds), _LOGIT_STRIDE)
    if width >= window.width:
        return None
    starts = [
        min(start - first, window.width - width)
        for (start, _), first in zip(bounds, window.starts, strict=True)
    ]
    device = state.device
    return send(starts, device)[:, None] + torch.arange(width, device=device)
