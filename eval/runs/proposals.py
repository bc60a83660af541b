"""What every state proposed for every open position, and how much of it came true."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dllm_decode import StepEvent
from eval.runs.lines import Binned

NUM_BINS = 20


class _Step(NamedTuple):
    """The proposals of one step, one entry for each position that could be committed."""

    requests: Int[Tensor, " N"]
    positions: Int[Tensor, " N"]
    tokens: Int[Tensor, " N"]
    confidences: Float[Tensor, " N"]


class Proposals:
    """Observes a decode and compares what each state proposed with the tokens of the end.

    A position counts in every state in which it could be committed, whether it was or not: that
    tells what another threshold would have committed in the same states. Positions are those of
    `Trace`. Serves one call of `decode`.
    """

    def __init__(self) -> None:
        self._steps: list[_Step] = []

    def __call__(self, event: StepEvent) -> None:
        rows, columns = event.view.eligible.nonzero(as_tuple=True)
        self._steps.append(_Step(
            event.requests[rows].cpu(),
            event.view.positions[rows, columns].cpu(),
            event.view.proposal[rows, columns].cpu(),
            event.view.confidence[rows, columns].float().cpu(),
        ))  # fmt: skip

    def of(self, tokens: Int[Tensor, "B G"], lengths: Int[Tensor, " B"]) -> list[Binned]:
        """Returns for each row its proposals by confidence.

        Args:
            tokens: The answers.
            lengths: Positions up to and including the first EOS; those behind do not count.
        """
        found = torch.zeros(len(tokens) * NUM_BINS, 3, dtype=torch.float64)
        tokens, lengths = tokens.cpu(), lengths.cpu()
        for step in self._steps:
            counts = (step.positions >= 0) & (step.positions < lengths[step.requests])
            requests, positions, proposed, confidence = (part[counts] for part in step)
            bins = (confidence * NUM_BINS).long().clamp(0, NUM_BINS - 1)
            agrees = proposed == tokens[requests, positions]
            told = torch.stack([torch.ones_like(confidence), agrees.float(), confidence], dim=-1)
            found.index_add_(0, requests * NUM_BINS + bins, told.double())
        return [
            [(int(count), int(agreeing), round(total, 4)) for count, agreeing, total in row]
            for row in found.view(len(tokens), NUM_BINS, 3).tolist()
        ]
