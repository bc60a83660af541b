"""The view on which a sampler decides: tokens, logits and options of all rows."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dllm_decode.core.canvas import Canvas
from dllm_decode.core.sending import send
from dllm_decode.core.window import Window
from dllm_decode.engine.constraints.forced_tokens import with_forced_tokens
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.row_options import temperature_of, truncation_of
from dllm_decode.engine.state import State
from samplers.logits.summary import Summary
from samplers.view import View


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
    canvas, rows, device = state.canvas, state.rows, state.device
    not_written, masked, eligible = _masks(decoder, canvas, window)
    starts = [start - row.prompt_length for row, start in zip(rows, window.starts, strict=True)]
    num_columns = _one_or_each([row.end - row.prompt_length for row in rows], device)
    block_starts = [
        row.opening.start - start for row, start in zip(rows, window.starts, strict=True)
    ]
    view = View(
        tokens=window.part(canvas.tokens),
        summary=Summary(
            logits, offsets, truncation_of(rows, logits.device), decoder.model_is_compiled
        ),
        masked=masked,
        eligible=eligible,
        start=_one_or_each(starts, device),
        gen_length=_one_or_each([row.config.gen_length for row in rows], device),
        num_committed=(num_columns - not_written.sum(-1)).minimum(canvas.gen_lengths),
        temperature=temperature_of(rows, masked.device),
        noise_keys=state.noise_keys,
        # A tensor even if all rows agree, so that `View.within("suffix")` keeps its width.
        block_start=send(block_starts, device) if decoder.sampler.scope == "answer" else 0,
        block_length=None if decoder.sampler_sees_block_only else decoder.block_length,
        reads_committed=decoder.sampler_reads_committed,
        deferred_ids=decoder.config.deferred_ids,
        eos_ids=canvas.eos_ids,
    )
    if state.constrained_rows is None:
        return view
    return with_forced_tokens(decoder, state, window, view, state.constrained_rows)


def _masks(
    decoder: Decoder, canvas: Canvas, window: Window
) -> tuple[Bool[Tensor, "B L"], Bool[Tensor, "B W"], Bool[Tensor, "B W"]]:
    """Returns the columns of the canvas without a token; then `masked`, `eligible` of the view."""
    # If tokens are final, all unsettled columns are masked, and operations are saved.
    is_final = decoder.tokens_are_final
    not_written = canvas.unsettled if is_final else canvas.masked
    # Outside inference mode torch counts writes, so that `next_step` finds a sampler that writes.
    with torch.inference_mode(False):
        eligible = window.part(canvas.unsettled) & window.open
        if not decoder.sampler_sees_block_only:
            return not_written, window.part(not_written), eligible
        masked = eligible if is_final else window.part(not_written) & eligible
        return not_written, masked, eligible


def _one_or_each(values: Sequence[int], device: torch.device) -> int | Int[Tensor, " B"]:
    """Returns the number that all rows share, or each row's number."""
    return values[0] if len(set(values)) == 1 else send(values, device)
