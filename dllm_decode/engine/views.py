"""A look at the model: one forward, and the sampler's view of its logits."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dllm_decode.core.passes import Edit, Pass, Window, keep_inputs
from dllm_decode.core.rows import Row
from dllm_decode.core.sending import send
from dllm_decode.core.sizes import round_up
from dllm_decode.engine.constraints.view import with_paths
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.forward import forward
from dllm_decode.engine.state import Look, State
from samplers.logits.summary import Summary
from samplers.logits.truncation import Truncation
from samplers.view import View

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


def view_of(
    decoder: Decoder,
    state: State,
    window: Window,
    logits: Float[Tensor, "B N V"],
    *,
    offsets: Int[Tensor, "B N"] | None = None,
) -> View:
    """Returns the sampler's view of a canvas, given logits of its window.

    Args:
        decoder: The decoder.
        state: The rows, whose canvas may hold drafts.
        window: The sampler's window of these rows.
        logits: Logits of the window, as `forward` returns them.
        offsets: As in `Pass`.
    """
    canvas, rows = state.canvas, state.rows
    # If tokens are final, all unsettled columns are masked, and operations are saved.
    is_final = decoder.tokens_are_final
    not_written = canvas.unsettled if is_final else canvas.masked
    # Outside inference mode torch counts writes, so that `next_step` finds a sampler that writes.
    with torch.inference_mode(False):
        eligible = window.part(canvas.unsettled) & window.open
        if decoder.sees_block_only:
            masked = eligible if is_final else window.part(not_written) & eligible
        else:
            masked = window.part(not_written)
    device = state.device
    starts = [start - row.prompt_length for row, start in zip(rows, window.starts, strict=True)]
    sizes = [row.end - row.prompt_length for row in rows]
    size = _one_or_each(sizes, device)
    block_starts = [
        row.opening.start - start for row, start in zip(rows, window.starts, strict=True)
    ]
    view = View(
        tokens=window.part(canvas.tokens),
        summary=Summary(logits, offsets, truncation_of(rows, logits.device), decoder.compiles),
        masked=masked,
        eligible=eligible,
        start=_one_or_each(starts, device),
        gen_length=_one_or_each([row.config.gen_length for row in rows], device),
        num_committed=(size - not_written.sum(-1)).minimum(canvas.gen_lengths),
        temperature=temperature_of(rows, masked.device),
        noise_keys=state.noise_keys,
        # A tensor even if all rows agree, so that `View.within("suffix")` keeps its width.
        block_start=send(block_starts, device) if decoder.sampler.scope == "answer" else 0,
        block_length=None if decoder.sees_block_only else decoder.block_length,
        reads_committed=decoder.reads_committed,
        deferred_ids=decoder.config.deferred_ids,
        eos_ids=canvas.eos_ids,
    )
    if state.constrained_rows is None:
        return view
    return with_paths(decoder, state.constrained_rows, state, view, window)


def _offsets_to_predict(
    decoder: Decoder, state: State, window: Window
) -> Int[Tensor, "B N"] | None:
    """Returns offsets of the window's columns whose logits are read; `None`: all.

    On a CPU, each row has its unsettled open columns first, then others: equally many in all rows.
    """
    if decoder.reads_committed or not decoder.sees_block_only:
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


def truncation_of(rows: Sequence[Row], device: torch.device) -> Truncation | None:
    """Returns how the rows' logits are truncated before samplers see them; `None`: not at all."""
    configs = [row.config for row in rows]
    if not any(c.is_tempered for c in configs):
        return None
    # A temperature of 0 changes no logits.
    settings = [(c.temperature if c.is_tempered else 0.0, c.top_p, c.top_k) for c in configs]
    if len(set(settings)) == 1:
        return Truncation(*settings[0])
    temperatures, shares, counts = zip(*settings, strict=True)
    return Truncation(
        _per_row(temperatures, device),
        _per_row(shares, device),
        send(counts, device),
    )


def _per_row(values: Sequence[float], device: torch.device) -> Float[Tensor, " B"]:
    """Returns one number for each row as a tensor, in float64 if the device has it."""
    dtype = torch.float32 if device.type == "mps" else torch.float64
    return send(values, device, dtype)


def temperature_of(rows: Sequence[Row], device: torch.device) -> float | Float[Tensor, " B"]:
    """Returns the temperature of draws; tempered logits are already divided by the temperature."""
    values = []
    for config in (row.config for row in rows):
        is_divided = config.is_tempered and config.temperature > 0.0
        values.append(1.0 if is_divided else float(config.temperature))
    return values[0] if len(set(values)) == 1 else _per_row(values, device)


def _one_or_each(values: Sequence[int], device: torch.device) -> int | Int[Tensor, " B"]:
    """Returns the number that all rows share, or each row's number."""
    return values[0] if len(set(values)) == 1 else send(values, device)
