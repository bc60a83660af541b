"""A look at a uniform-state model: a canvas begins as noise; the model reads its last logits."""

from dataclasses import replace

import torch

from dllm_decode.core.model import ForwardInputs
from dllm_decode.core.passes import Edit, keep_inputs
from dllm_decode.core.sending import send
from dllm_decode.engine.decoder import Decoder
from dllm_decode.engine.look import look, with_window
from dllm_decode.engine.state import State
from dllm_decode.engine.verifier import Look
from samplers.logits import noise
from samplers.view import by_row


def look_at_noise(decoder: Decoder, state: State) -> tuple[State, Look]:
    """Runs one forward, with noise in new blocks and with the belief in the others."""
    fresh = [row.is_fresh for row in state.rows]
    if any(fresh):
        state = with_random_tokens(decoder, state)
    edit = keep_inputs if all(fresh) else _belief_edit(decoder, state, fresh)
    return look(decoder, state, edit=edit)


def with_random_tokens(decoder: Decoder, state: State) -> State:
    """Returns the state in which blocks that have just opened hold random tokens, not [MASK]."""
    state, window = with_window(decoder, state)
    canvas = state.canvas
    starts = by_row(window.first_columns - canvas.prompt_lengths)
    positions = torch.arange(window.width, device=state.device) + starts
    # A sampler counts its steps from 1, so that it does not draw these tokens again.
    step = torch.zeros_like(state.noise_keys)
    keys = noise.position_keys(noise.step_keys(state.noise_keys, step), step, positions)
    drawn = noise.random_tokens(keys, decoder.model.vocab_size)
    tokens = window.put(canvas.tokens, window.part(canvas.masked), drawn)
    return state._replace(canvas=replace(canvas, tokens=tokens))


def _belief_edit(decoder: Decoder, state: State, fresh: list[bool]) -> Edit:
    """Returns the edit that gives the model the logits of the last step; -inf in fresh rows."""
    belief = decoder.sampler.belief(state.sampler_state)
    if belief is None:
        return keep_inputs
    if any(fresh):
        is_fresh = send(fresh, state.device)[:, None, None]
        belief = belief.masked_fill(is_fresh, -torch.inf)

    def edit(inputs: ForwardInputs, members: tuple[int, ...]) -> ForwardInputs:
        has_all_rows = len(members) == len(belief)
        return replace(inputs, belief=belief if has_all_rows else belief[list(members)])

    return edit
