"""Divide-and-conquer unmasking (Hierarchy-dLLM)."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from samplers.base import Decision, Sampler
from samplers.checks import Probability
from samplers.logits.statistics import ranks
from samplers.view import View


@dataclass(frozen=True)
class Hierarchy(Sampler[None]):
    """Commits the most confident position of every run of masks, and all very confident ones.

    A run is a maximal stretch of neighbouring eligible positions; committed tokens and the block's
    edges end it. A step commits in each run the most confident position, if its confidence exceeds
    `low_threshold`; every position whose confidence exceeds `high_threshold`; and the row's most
    confident position. Splitting the runs keeps tokens that depend on each other apart.

    Source: "Hierarchy-dLLM" 2025, https://openreview.net/forum?id=ZsIQUjQtdW; the comparisons are
    `>`, as in the authors' code in dInfer, https://github.com/inclusionAI/dInfer.

    Differs: Among equal confidences in one run the leftmost is committed, in the authors' code all.
    Their variant that re-masks is not offered, because it overwrites committed tokens.

    Attributes:
        low_threshold: Probability, in [0, 1], that a run's best proposal must exceed.
        high_threshold: Probability, in [0, 1], above which any proposal is committed; 1 turns this
            part off.

    Raises:
        ValueError: If an attribute is not a probability.
    """

    low_threshold: Probability = 0.4
    high_threshold: Probability = 0.9

    def step(self, view: View, state: None) -> tuple[Decision, None]:
        rank = ranks(view.confidence, view.eligible)
        first = view.eligible & (rank == 0)
        leaders = _first_of_runs(rank, view.eligible) & (view.confidence > self.low_threshold)
        confident = view.eligible & (view.confidence > self.high_threshold)
        return Decision(commit=first | leaders | confident), state


def _first_of_runs(rank: Int[Tensor, "B W"], among: Bool[Tensor, "B W"]) -> Bool[Tensor, "B W"]:
    """Selects the best-ranked position of every run of the given positions."""
    width = rank.shape[-1]
    starts = among.clone()
    starts[:, 1:] &= ~among[:, :-1]
    run = (starts.cumsum(-1) - 1).clamp(min=0)
    # Ranks are unique, so each run has one best position.
    best = torch.full_like(rank, width).scatter_reduce(
        -1, run, rank.masked_fill(~among, width), "amin"
    )
    return among & (rank == best.gather(-1, run))
