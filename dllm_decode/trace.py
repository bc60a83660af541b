"""Observers: what happened at which step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dllm_decode.canvas import Block, Canvas
from samplers.base import View


@dataclass(frozen=True)
class StepEvent:
    """One step of some rows, as observers see it.

    Attributes:
        before: The rows that took the step; `before.rows` says which of the batch they are.
        after: The same rows after it.
        block: The open block.
        view: What the rows were shown. A verifier that looks ahead takes several steps on one
            forward, each with a view of its own.
        forwards: Forwards so far in this decode, this step's included.
        query_positions: Columns computed so far for each of these rows.
    """

    before: Canvas
    after: Canvas
    block: Block
    view: View
    forwards: int
    query_positions: Int[Tensor, " B"]


Observer: TypeAlias = Callable[[StepEvent], None]


class Revision(NamedTuple):
    """A committed token that was taken back.

    Attributes:
        position: Answer position.
        token: What stood there.
        committed: Round of its commit, -1 if it was given.
        confidence: As in `Trace`.
        removed: Round in which it was re-masked or replaced.
    """

    position: int
    token: int
    committed: int
    confidence: float
    removed: int


class Trace:
    """Records at which round each answer position was committed, and how confidently.

    Pass it in `observers`; one trace serves one call of `decode`.

    Attributes:
        steps: Per row of the batch the round of each answer position's last commit, from 0; -1 for
            tokens that were given or filled in behind an EOS.
        confidences: Temperature-1 probability of the token at that round; NaN where `steps` is -1.
        revisions: Per row the commits that later rounds took back, in their order.
        rounds: Rounds so far, of each row.
    """

    def __init__(self) -> None:
        self.steps: dict[int, Int[Tensor, " R"]] = {}
        self.confidences: dict[int, Float[Tensor, " R"]] = {}
        self.revisions: dict[int, list[Revision]] = {}
        self.rounds: dict[int, int] = {}

    def __call__(self, event: StepEvent) -> None:
        start, width = event.view.start, event.view.tokens.shape[1]
        window = slice(start, start + width)
        before, after = event.before.region[:, window], event.after.region[:, window]
        masked, masks_left = event.before.masked[:, window], event.after.masked[:, window]
        committed = ~masks_left & (before != after) & ~_filled(event)[:, window]
        removed = ~masked & (before != after)
        probability = event.view.probability(after.clamp(max=event.view.logits.shape[-1] - 1))
        for index, row in enumerate(event.before.rows.tolist()):
            length = event.after.region_length
            steps = self.steps.setdefault(row, torch.full((length,), -1))
            confidences = self.confidences.setdefault(row, torch.full((length,), torch.nan))
            past = self.revisions.setdefault(row, [])
            now = self.rounds.get(row, 0)
            for at in removed[index].nonzero().flatten().tolist():
                position, token = start + at, int(before[index, at])
                confidence = float(confidences[position])
                past.append(Revision(position, token, int(steps[position]), confidence, now))
                steps[position], confidences[position] = -1, torch.nan
            where = committed[index].cpu()
            steps[window][where] = now
            confidences[window][where] = probability[index].float().cpu()[where]
            self.rounds[row] = now + 1


def _filled(event: StepEvent) -> Bool[Tensor, "B R"]:
    """Marks the EOS that stopping a row wrote behind its end, and what cannot be told from it."""
    stopped = event.before.running & ~event.after.running
    region = event.after.region
    eos = torch.isin(region, torch.tensor(event.after.eos_ids, device=region.device))
    positions = torch.arange(region.shape[1], device=region.device)
    ends = eos & (positions >= event.after.lead[:, None])
    behind = ends.cumsum(-1) - ends.long() > 0
    return stopped[:, None] & behind & (region == event.after.eos_ids[0])
