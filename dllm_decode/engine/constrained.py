"""The view of rows whose answers must be in a set of texts: the path says which token."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from dllm_decode.core.canvas import Canvas
from dllm_decode.core.constraints import Constraints
from dllm_decode.core.passes import Window
from dllm_decode.core.rows import Row
from dllm_decode.core.state import State
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.paths import Path, Span, best_path, draw_path
from samplers.view import View, by_row


def with_paths(
    decoder: Decoder,
    state: State,
    view: View,
    *,
    canvas: Canvas,
    window: Window,
    rows: Sequence[int] | None,
) -> View:
    """Returns the view in which rows with a constraint propose the tokens of a path.

    Args:
        decoder: The decoder.
        state: The rows, of which some have a constraint.
        view: The view without constraints.
        canvas: The tokens: the state's, or drafts.
        window: The window of the view.
        rows: Which rows of the state the view has; `None`: all.
    """
    assert state.constraints is not None
    own = state.constraints.among(rows)
    if own is None:
        return view
    listed = state.rows if rows is None else [state.rows[row] for row in rows]
    length = _length(decoder, [listed[number] for number in own.rows], own)
    span = _span(canvas, own, length)
    asked = view.computed.columns
    W = view.tokens.shape[1]
    if asked is None:
        asked = torch.arange(W, device=own.row_index.device).expand(len(view.tokens), W)
    asked = asked[own.row_index]
    firsts = by_row(window.first_columns)
    firsts = firsts[own.row_index] if isinstance(firsts, Tensor) else firsts
    at = asked + firsts - own.columns[:, None]
    # Only masks that the sampler may fill: the other columns that a forward predicts depend on
    # which rows are in the batch.
    is_open = view.masked[own.row_index].gather(1, asked) & view.in_answer[own.row_index].gather(
        1, asked
    )
    is_open &= (at >= 0) & (at < length)
    path = _path(view, own, span, asked, torch.where(is_open, at, length))
    tokens = torch.where(path.found[:, None], path.tokens, canvas.mask_id)
    tokens = tokens.masked_fill(~is_open, -1)
    found = tokens.new_full((len(tokens), W), -1).scatter_(1, asked, tokens)
    proposed = torch.full_like(view.tokens, -1).index_copy(0, own.row_index, found)
    return replace(view, proposed=proposed)


def _length(decoder: Decoder, rows: Sequence[Row], own: Constraints) -> int:
    """Returns the columns of the longest span: up to the last that may have logits or a token."""
    stops = []
    for row in rows:
        given = [n for n, one in enumerate(row.request.template) if one != decoder.model.mask_id]
        last = row.prompt_length + given[-1] + 1 if given else 0
        # A sampler of a wider scope may have filled any column, and a schedule of several open
        # blocks a later one before an earlier one.
        stop = row.opening.phase[1] if decoder.sampler.scope == "block" else row.answer_end
        stops.append(min(max(stop, last), row.answer_end))
    return max(1, *(stop - start for stop, start in zip(stops, own.starts, strict=True)))


def _span(canvas: Canvas, own: Constraints, length: int) -> Span:
    """Returns the columns over which the paths of rows run."""
    columns = own.columns[:, None] + torch.arange(length, device=own.columns.device)
    ends = (canvas.prompt_lengths + canvas.gen_lengths)[own.row_index]
    is_after = columns >= ends[:, None]
    columns = columns.clamp(max=canvas.width - 1)
    tokens = canvas.tokens[own.row_index].gather(1, columns)
    unsettled = canvas.unsettled[own.row_index].gather(1, columns)
    return Span(
        tokens=tokens.masked_fill(is_after, canvas.eos_ids[0]),
        settled=~unsettled | is_after,
        states=own.states,
        num_left=(ends - own.columns - length).clamp(min=0),
    )


def _path(
    view: View,
    own: Constraints,
    span: Span,
    asked: Int[Tensor, "N n"],
    columns: Int[Tensor, "N n"],
) -> Path:
    """Returns the best paths, or those drawn at a temperature above 0."""
    logits, temperature = view.computed.logits, view.temperature
    if len(own.rows) < len(logits):
        logits = logits[own.row_index]
    if view.is_greedy:
        return best_path(own.automata, span, logits, columns)
    keys = view.position_keys[own.row_index].gather(1, asked)
    if not isinstance(temperature, Tensor):
        return draw_path(own.automata, span, logits, columns, temperature=temperature, keys=keys)
    temperature = temperature[own.row_index]
    is_drawn = temperature > 0.0
    above = torch.where(is_drawn, temperature, 1.0)
    drawn = draw_path(own.automata, span, logits, columns, temperature=above, keys=keys)
    best = best_path(own.automata, span, logits, columns)
    return best._replace(tokens=torch.where(is_drawn[:, None], drawn.tokens, best.tokens))
