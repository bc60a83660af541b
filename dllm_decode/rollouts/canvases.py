"""Which tokens of a rollout are scored, and on which canvases."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dllm_decode.rollouts.record import Rollout, Write
from samplers.checks import shown


class Canvases(NamedTuple):
    """Canvases of one rollout, and the tokens that are scored on them.

    Token n is scored at position `positions[n]` of canvas `canvas[n]`.

    Attributes:
        tokens: Prompt and answer up to the end of its last block, [MASK] where they are hidden.
        canvas: Number of the canvas that each token is scored on.
        positions: Place of each token in the answer, from 0.
        targets: The tokens.
        weights: Weight of each token in a sum, see `Scores`.
    """

    tokens: Int[Tensor, "T L"]
    canvas: Int[Tensor, " N"]
    positions: Int[Tensor, " N"]
    targets: Int[Tensor, " N"]
    weights: Float[Tensor, " N"]

    @staticmethod
    def of_answer(rollout: Rollout, hidden: Int[Tensor, "T L"]) -> "Canvases":
        """Returns canvases on which the answer is scored where they hide it, with weight 1.

        Args:
            rollout: The rollout.
            hidden: True at columns that are [MASK], of the prompt and of the final answer.
        """
        final = rollout.canvases()[-1]
        start = len(rollout.prompt)
        stop = start + len(rollout.tokens)
        final[start:stop] = torch.tensor(rollout.tokens)
        canvas, positions = hidden[:, start:stop].nonzero().unbind(-1)
        targets = final[start:][positions]
        tokens = final.repeat(len(hidden), 1).masked_fill(hidden.bool(), rollout.mask_id)
        return Canvases(tokens, canvas, positions, targets, torch.ones(len(targets)))

    def check(self, rollout: Rollout, vocab_size: int) -> None:
        """Raises ValueError unless the canvases are of a rollout."""
        width = len(rollout.prompt) + rollout.length
        tokens = self.tokens
        if tokens.ndim != 2 or tokens.shape[1] != width:
            raise ValueError(
                f"Canvases must have {width} columns, up to the end of the answer's last block, "
                f"got the shape {tuple(tokens.shape)}."
            )
        sizes = [len(part) for part in self[1:]]
        if len(set(sizes)) > 1:
            raise ValueError(
                f"canvas, positions, targets and weights must be equally many, got {sizes}."
            )
        bounds = (
            ("canvas", self.canvas, len(tokens)),
            ("positions", self.positions, rollout.length),
            ("targets", self.targets, vocab_size),
            ("tokens", tokens, vocab_size),
        )
        for name, part, end in bounds:
            wrong = part[(part < 0) | (part >= end)]
            if len(wrong):
                raise ValueError(f"{name} of Canvases must be in [0, {end}), got {int(wrong[0])}.")


Steps: TypeAlias = Literal["all"] | int | Sequence[Canvases]
"""Which steps are scored: all, so many of each rollout, or canvases of one's own."""


def canvases_of(
    rollout: Rollout, steps: Literal["all"] | int, shrink: int, generator: torch.Generator | None
) -> tuple[Canvases, list[Write]]:
    """Returns the canvases before the steps of a rollout, and its commits in the same order.

    Args:
        rollout: The rollout.
        steps: As in `score`.
        shrink: As in `score`.
        generator: Draws the steps.
    """
    commits: dict[int, list[Write]] = {}
    for write in rollout.commits:
        commits.setdefault(write.step, []).append(write)
    listed = list(commits)
    turns = [listed[n : n + shrink] for n in range(0, len(listed), shrink)]
    drawn: list[tuple[list[int], int]] = [(turn, 1) for turn in turns]
    if steps != "all" and steps < len(turns):
        drawn = [_one_of(stratum, generator) for stratum in _strata(turns, steps)]
    own = [
        (n, write) for n, (turn, _) in enumerate(drawn) for step in turn for write in commits[step]
    ]
    numbers = [(n, write.position, write.token) for n, write in own]
    canvas, positions, targets = torch.tensor(numbers, dtype=torch.long).view(-1, 3).unbind(-1)
    weights = torch.tensor([drawn[n][1] for n, _ in own], dtype=torch.float64)
    first = torch.tensor([turn[0] for turn, _ in drawn], dtype=torch.long)
    found = Canvases(rollout.canvases()[first], canvas, positions, targets, weights)
    return found, [write for _, write in own]


def _strata(turns: list[list[int]], number: int) -> list[list[list[int]]]:
    """Divides turns into consecutive strata whose sizes differ by one at most."""
    bounds = [n * len(turns) // number for n in range(number + 1)]
    return [turns[start:stop] for start, stop in pairwise(bounds)]


def _one_of(stratum: list[list[int]], generator: torch.Generator | None) -> tuple[list[int], int]:
    """Draws one turn of a stratum; its weight is the stratum's size."""
    drawn = int(torch.randint(len(stratum), (), generator=generator))
    return stratum[drawn], len(stratum)


def require_steps(steps: object, num_rollouts: int) -> None:
    """Raises ValueError unless steps are a way to choose them."""
    if steps == "all" or (isinstance(steps, int) and not isinstance(steps, bool) and steps > 0):
        return
    if not isinstance(steps, list | tuple) or not all(isinstance(one, Canvases) for one in steps):
        raise ValueError(
            'steps must be "all", a number of steps of at least 1, or a list with the Canvases of '
            f"each rollout, got {shown(steps)}."
        )
    if len(steps) != num_rollouts:
        raise ValueError(
            f"steps must hold the Canvases of each of {num_rollouts} rollouts, got {len(steps)}."
        )
