"""The parts of a trace: observers of a decode that see every step of its rows."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dllm_decode import StepEvent, Trace
from eval.runs.lines import Binned, RecordedTrace, Told

NUM_BINS = 20
NUM_TOKENS = 4


class RunnersUp:
    """Observes a decode and keeps, for each answer position, the distribution it was drawn from.

    Positions are those of `Trace`; the last commit of a position counts. `told` has them by the
    prompt's index and the position.
    """

    def __init__(self) -> None:
        self.told: dict[int, dict[int, Told]] = {}

    def __call__(self, event: StepEvent) -> None:
        columns = event.columns
        before, after = (part.tokens.gather(1, columns) for part in (event.before, event.after))
        committed = ~event.after.masked.gather(1, columns) & (before != after)
        top = event.view.likeliest(min(NUM_TOKENS, event.view.vocab_size))
        rows, at = committed.nonzero(as_tuple=True)
        # Once for all rows: the host waits for each of these.
        parts = (event.view.positions, event.view.entropy, top.tokens, top.probabilities)
        values = (part[rows, at].tolist() for part in parts)
        told_all = zip(event.requests[rows].tolist(), *values, strict=True)
        for request, position, nats, ids, shares in told_all:
            likely = [(i, round(p, 4)) for i, p in zip(ids, shares, strict=True)]
            told = self.told.setdefault(request, {})
            told[position] = (round(nats, 4), likely)

    def of(self, request: int, steps: list[int]) -> list[Told | None]:
        """Returns the distribution of each position that a step committed, None of others."""
        told = self.told.get(request, {})
        return [told.get(at) if step >= 0 else None for at, step in enumerate(steps)]


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

        Positions after an answer's length, up to and including the first EOS, do not count.
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


def recorded(
    trace: Trace, runners_up: RunnersUp, proposed: Binned, row: int, lead: int
) -> RecordedTrace:
    """Returns step and confidence of each position; -1 and None where no round committed it.

    `proposed` has the row's proposals, as `Proposals.of` returns them; `lead` counts the prompt
    tokens in the first block of a block-causal model.
    """
    steps = trace.steps[row].tolist()
    return {
        "steps": steps,
        "runners_up": runners_up.of(row, steps),
        "proposals": proposed,
        "confidences": [_rounded(one) for one in trace.confidences[row].tolist()],
        "revisions": [
            (r.position, r.token, r.committed, _rounded(r.confidence), r.removed)
            for r in trace.revisions[row]
        ],
        "lead": lead,
    }


def _rounded(confidence: float) -> float | None:
    return None if math.isnan(confidence) else round(confidence, 4)
