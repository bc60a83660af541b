"""Rows whose answer has ended, and their outputs."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dllm_decode.core.output import DecodeOutput
from dllm_decode.core.sending import send
from dllm_decode.engine.state import State
from samplers.state import take_state


@dataclass(frozen=True)
class EndedRequest:
    """A request whose answer has ended.

    Attributes:
        index: Number of the request, see `Request.index`.
        output: The answer and its cost: one row; the answer is not complete if there is an error.
        forwards: Calls of the mask predictor up to now, of the whole decode.
        target_forwards: Calls of a verifier's target up to now, of the whole decode.
        error: The rule that a plug-in or the model broke in this row; empty: none.
    """

    index: int
    output: DecodeOutput
    forwards: int
    target_forwards: int
    error: str = ""


def rows_answered_by_template(state: State, num_joined: int) -> list[int]:
    """Returns those of the last `num_joined` rows that are answered by their template.

    Such a template leaves nothing blank, or has an EOS before its first blank.
    """
    ended = []
    for number in range(len(state.rows) - num_joined, len(state.rows)):
        row = state.rows[number]
        request = row.request
        given_tokens = request.template[: row.first_unsettled - row.prompt_length]
        is_over = any(token in state.canvas.eos_ids for token in given_tokens)
        has_ended = request.config.stop_at_eos and is_over
        if has_ended or row.first_unsettled >= row.answer_end:
            ended.append(number)
    return ended


def outputs_of(state: State, rows: Sequence[int]) -> list[EndedRequest]:
    """Returns the outputs of rows that have ended."""
    if not rows:
        return []
    index = send(rows, state.device)
    canvas = state.canvas.take(index)
    tokens = canvas.with_eos(canvas.unsettled).answer_tokens().cpu()
    unsettled = canvas.unsettled.cpu()
    drafted, accepted = state.cost.drafted[index].cpu(), state.cost.accepted[index].cpu()
    commits = take_state(state.commits, index)
    cost = state.cost
    ended = []
    for number, row in enumerate(state.rows[n] for n in rows):
        bounds = row.prompt_length, row.answer_end
        output = DecodeOutput(
            tokens=tokens[number : number + 1, : row.config.gen_length],
            unsettled=unsettled[number : number + 1, slice(*bounds)],
            nfe=torch.tensor([row.nfe]),
            query_positions=torch.tensor([row.query_positions]),
            forwards=row.nfe,
            target_nfe=torch.tensor([row.target_nfe]),
            target_forwards=row.target_nfe,
            drafted=drafted[number : number + 1],
            accepted=accepted[number : number + 1],
            wall_s=time.perf_counter() - row.started_s,
            eos_ids=canvas.eos_ids,
            commits=None if commits is None else commits.of_answer(number, *bounds),
        )
        ended.append(
            EndedRequest(
                row.request.index, output, cost.forwards, cost.target_forwards, error=row.error
            )
        )
    return ended
