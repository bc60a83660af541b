"""A look for samplers that judge a token without the token: a masked copy of each column.

Columns 2 and 3 of a row are wanted, and hold a token each; `x`: the column on the left sees the
column above. The copies, `2'` and `3'`, are [MASK] and have the positions of their originals.

          0  1  2  3  2' 3'
    0..3  x  x  x  x
    2'    x  x     x  x  x
    3'    x  x  x     x  x
"""

from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from dllm_decode.core.model import ForwardInputs
from dllm_decode.core.passes import Pass
from dllm_decode.core.window import Window
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.forward import forward
from dllm_decode.engine.look import with_window
from dllm_decode.engine.row_options import truncation_of
from dllm_decode.engine.state import State
from dllm_decode.engine.verifier import Look
from dllm_decode.engine.views import view_of
from samplers.logits.statistics import probability


def look_without_own_token(decoder: Decoder, state: State) -> tuple[State, Look]:
    """Runs one forward and returns the view of every row, with `View.leave_one_out`."""
    state, window = with_window(decoder, state)
    pass_ = Pass(window, edit=partial(_with_copies, decoder.model.mask_id))
    state, logits = forward(decoder, state, pass_)
    num_copies = decoder.calls_per_forward * window.width
    rows = [row._replace(query_positions=row.query_positions + num_copies) for row in state.rows]
    state = state._replace(rows=tuple(rows))
    width = window.width
    view = view_of(decoder, state, window, logits[:, :width])
    trust = _trust(state, window, logits[:, width:])
    return state, Look(replace(view, leave_one_out=trust), window)


def _trust(state: State, window: Window, logits: Float[Tensor, "B W V"]) -> Float[Tensor, "B W"]:
    """Returns the probability of each token of the window after truncation, 0 at masks."""
    tokens, masked = window.part(state.canvas.tokens), window.part(state.canvas.masked)
    truncation = truncation_of(state.rows, logits.device)
    logits = logits if truncation is None else truncation(logits)
    return probability(logits, tokens.masked_fill(masked, 0)).masked_fill(masked, 0.0)


def _with_copies(mask_id: int, inputs: ForwardInputs, members: tuple[int, ...]) -> ForwardInputs:
    """Appends a masked copy of the wanted columns, which predicts each of them without seeing it.

    A copy has the rotary position of its original. It sees all columns but its original, and the
    copies of all columns of the row. A window may end after its row; the copy of a column
    there is seen only by itself. No original sees a copy.
    """
    copied = inputs.wanted
    rows, length = inputs.tokens.shape
    width = copied.shape[1]
    copies = torch.arange(length, length + width, device=copied.device).expand(rows, -1)
    masks = torch.full_like(copied, mask_id)
    visible = torch.ones_like(inputs.tokens, dtype=torch.bool)[:, None]
    visible = visible if inputs.attend is None else inputs.attend
    attend = visible.new_zeros(rows, length + width, length + width)
    attend[:, :, :length] = visible
    # A window that ends after the last column repeats that column; only its first copy counts.
    is_in_row = visible[:, 0].expand(rows, length).gather(1, copied)
    is_in_row[:, 1:] &= copied[:, 1:] != copied[:, :-1]
    itself = torch.eye(width, dtype=torch.bool, device=copied.device)
    attend[:, length:, length:] = is_in_row[:, None] | itself
    attend[:, length:].scatter_(2, copied[..., None], False)
    return replace(
        inputs,
        tokens=torch.cat([inputs.tokens, masks], 1),
        positions=torch.cat([inputs.positions, inputs.positions.gather(1, copied)], 1),
        wanted=torch.cat([copied, copies], 1),
        attend=attend,
    )
