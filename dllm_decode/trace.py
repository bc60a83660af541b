"""Observers: what happened at which step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dllm_decode.canvas import Block, Canvas
from samplers.base import View


@dataclass(frozen=True)
class StepEvent:
    """One round, as observers see it.

    Attributes:
        before: The rows of the round; `before.rows` says which of the batch they are.
        after: The same rows after it.
        block: The open block.
        view: What the last forward of the round showed.
        forwards: Forwards so far in this decode, this round's included.
        query_positions: Columns computed so far for each of these rows.
    """

    before: Canvas
    after: Canvas
    block: Block
    view: View
    forwards: int
    query_positions: Int[Tensor, " B"]


Observer: TypeAlias = Callable[[StepEvent], None]


class Trace:
    """Records at which round each answer position was committed, and how confidently.

    Pass it in `observers`; one trace serves one call of `decode`.

    Attributes:
        steps: Per row of the batch the round of each answer position's last commit, from 0; -1 for
            tokens that were given or filled in behind an EOS.
        confidences: Temperature-1 probability of the token at that round; NaN where `steps` is -1.
        rounds: Rounds so far, of each row.
    """

    def __init__(self) -> None:
        self.steps: dict[int, Int[Tensor, " R"]] = {}
        self.confidences: dict[int, Float[Tensor, " R"]] = {}
        self.rounds: dict[int, int] = {}

    def __call__(self, event: StepEvent) -> None:
        start, width = event.view.start, event.view.tokens.shape[1]
        window = slice(start, start + width)
        tokens = event.after.region[:, window]
        committed = event.before.masked[:, window] & ~event.after.masked[:, window]
        probability = event.view.probability(tokens.clamp(max=event.view.logits.shape[-1] - 1))
        for index, row in enumerate(event.before.rows.tolist()):
            length = event.after.region_length
            steps = self.steps.setdefault(row, torch.full((length,), -1))
            confidences = self.confidences.setdefault(row, torch.full((length,), torch.nan))
            where = committed[index].cpu()
            steps[window][where] = self.rounds.get(row, 0)
            confidences[window][where] = probability[index].float().cpu()[where]
            self.rounds[row] = self.rounds.get(row, 0) + 1
