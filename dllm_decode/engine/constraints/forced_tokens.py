"""The view of rows whose answers must be in a set of texts: a path gives the tokens."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from dllm_decode.core.canvas import Canvas
from dllm_decode.core.rows import Row
from dllm_decode.core.window import Window
from dllm_decode.engine.constraints.constrained_rows import ConstrainedRows
from dllm_decode.engine.constraints.paths import Path, Span, best_path, draw_path
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.state import State
from samplers.view import View, by_row


def with_forced_tokens(
    decoder: Decoder, state: State, window: Window, view: View, constrained: ConstrainedRows
) -> View:
    """Returns the view with the tokens that a path forces on rows with a constraint.

    Args:
        decoder: The decoder.
        state: The rows.
        window: The window of the view.
        view: The view without constraints.
        constrained: The constraints of the rows that have one.
    """
    canvas = state.canvas
    length = _length(decoder, [state.rows[row] for row in constrained.rows], constrained)
    span = _span(canvas, constrained, length)
    offsets = view.summary.offsets
    W = view.tokens.shape[1]
    if offsets is None:
        offsets = torch.arange(W, device=constrained.rows_on_device.device).expand(
            len(view.tokens), W
        )
    offsets = offsets[constrained.rows_on_device]
    starts = by_row(window.first_columns)
    starts = starts[constrained.rows_on_device] if isinstance(starts, Tensor) else starts
    places = offsets + starts - constrained.starts_on_device[:, None]
    # Only columns that the sampler may fill: further logits depend on the other rows of the batch.
    # In a block of noise these hold tokens, all of which may change until the block is settled.
    fillable = (view.eligible if decoder.is_uniform_state else view.masked) & view.in_answer
    is_scored = fillable[constrained.rows_on_device].gather(1, offsets)
    is_scored &= (places >= 0) & (places < length)
    path = _path(view, constrained, span, offsets, torch.where(is_scored, places, length))
    tokens = torch.where(path.found[:, None], path.tokens, canvas.mask_id)
    tokens = tokens.masked_fill(~is_scored, -1)
    proposals = tokens.new_full((len(tokens), W), -1).scatter_(1, offsets, tokens)
    forced = torch.full_like(view.tokens, -1).index_copy(0, constrained.rows_on_device, proposals)
    return replace(view, forced_tokens=forced)


def _length(decoder: Decoder, rows: Sequence[Row], constrained: ConstrainedRows) -> int:
    """Returns the length of the longest span, which ends after the last logits or token."""
    stops = []
    for row in rows:
        given = [
            n for n, token in enumerate(row.request.template) if token != decoder.model.mask_id
        ]
        given_end = row.prompt_length + given[-1] + 1 if given else 0
        # A wider scope, or several open blocks, may fill a later column before an earlier one.
        stop = row.opening.phase[1] if decoder.sampler_sees_block_only else row.answer_end
        stops.append(min(max(stop, given_end), row.answer_end))
    return max(1, *(stop - start for stop, start in zip(stops, constrained.starts, strict=True)))


def _span(canvas: Canvas, constrained: ConstrainedRows, length: int) -> Span:
    """Returns the columns over which the paths of rows run."""
    columns = constrained.starts_on_device[:, None] + torch.arange(
        length, device=constrained.starts_on_device.device
    )
    ends = (canvas.prompt_lengths + canvas.gen_lengths)[constrained.rows_on_device]
    is_after = columns >= ends[:, None]
    columns = columns.clamp(max=canvas.width - 1)
    tokens = canvas.tokens[constrained.rows_on_device].gather(1, columns)
    unsettled = canvas.unsettled[constrained.rows_on_device].gather(1, columns)
    return Span(
        tokens=tokens.masked_fill(is_after, canvas.eos_ids[0]),
        settled=~unsettled | is_after,
        states=constrained.states,
        num_left=(ends - constrained.starts_on_device - length).clamp(min=0),
    )


def _path(
    view: View,
    constrained: ConstrainedRows,
    span: Span,
    offsets: Int[Tensor, "N n"],
    places: Int[Tensor, "N n"],
) -> Path:
    """Returns the best path of each row, or a drawn one at a temperature above 0."""
    logits, temperature = view.summary.logits, view.temperature
    if len(constrained.rows) < len(logits):
        logits = logits[constrained.rows_on_device]
    if view.is_greedy:
        return best_path(constrained.automata, span, logits, places)
    keys = view.position_keys[constrained.rows_on_device].gather(1, offsets)
    if not isinstance(temperature, Tensor):
        return draw_path(
            constrained.automata, span, logits, places, temperature=temperature, keys=keys
        )
    temperature = temperature[constrained.rows_on_device]
    is_drawn = temperature > 0.0
    positive = torch.where(is_drawn, temperature, 1.0)
    drawn = draw_path(constrained.automata, span, logits, places, temperature=positive, keys=keys)
    best = best_path(constrained.automata, span, logits, places)
    return best._replace(tokens=torch.where(is_drawn[:, None], drawn.tokens, best.tokens))
