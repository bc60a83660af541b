"""Which tokens of a rollout are scored, and on which canvases."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dllm_decode.rollouts.rollout import Rollout, Write
from samplers.checks import shown


class Canvases(NamedTuple):
    """Canvases of one rollout, and the tokens that are scored on them.

    Token n is scored at position `positions[n]` of canvas `canvas[n]`.

    Attributes:
        tokens: Prompt and answer, up to the end of the last block; [MASK] where a token is hidden.
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
    def of_answer(rollout: Rollout, hidden: Bool[Tensor, "T L"]) -> "Canvases":
        """Returns canvases on which each hidden token of the answer is scored, with weight 1.

        Args:
            rollout: The rollout.
            hidden: True at the columns of each canvas, prompt included, that become [MASK].
        """
        final = rollout.canvases()[-1]
        start = len(rollout.prompt)
        stop = start + len(rollout.tokens)
        final[start:stop] = torch.tensor(rollout.tokens)
        canvas, positions = hidden[:, start:stop].nonzero().unbind(-1)
        targets = final[start:][positions]
        tokens = final.repeat(len(hidden), 1).masked_fill(hidden, rollout.mask_id)
        return Canvases(tokens, canvas, positions, targets, torch.ones(len(targets)))

    def check(self, rollout: Rollout, vocab_size: int) -> None:
        """Raises ValueError unless the canvases fit a rollout."""
        width = len(rollout.prompt) + rollout.length
        tokens = self.tokens
        if tokens.ndim != 2 or tokens.shape[1] != width:
            raise ValueError(
                f"Canvases must have {width} columns, up to the end of the answer's last block, "
                f"got the shape {tuple(tokens.shape)}."
            )
        sizes = [len(values) for values in self[1:]]
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
        for name, values, end in bounds:
            wrong = values[(values < 0) | (values >= end)]
            if len(wrong):
                raise ValueError(f"{name} of Canvases must be in [0, {end}), got {int(wrong[0])}.")


Steps: TypeAlias = Literal["all"] | int | Sequence[Canvases]
"""Which steps are scored: all, so many of each rollout, or canvases of one's own."""


def canvases_of(
    rollout: Rollout, steps: Literal["all"] | int, shrink: int, generator: torch.Generator | None
) -> tuple[Canvases, list[Write]]:
    """Returns canvases before steps of a rollout, and the commits to score on them; see `score`."""
    commits: dict[int, list[Write]] = {}
    for write in rollout.commits:
        commits.setdefault(write.step, []).append(write)
    step_numbers = list(commits)
    # Successive steps that are scored on one canvas.
    shared = [step_numbers[n : n + shrink] for n in range(0, len(step_numbers), shrink)]
    number = len(shared) if steps == "all" else min(steps, len(shared))
    chosen: list[tuple[int, float, Write]] = []
    firsts: list[int] = []
    # Consecutive strata, whose sizes differ by one at most.
    bounds = [n * len(shared) // number for n in range(number + 1)] if number else []
    for start, stop in pairwise(bounds):
        stratum = shared[start:stop]
        # For a stratum of one step, the generator draws nothing.
        drawn = len(stratum) > 1 and int(torch.randint(len(stratum), (), generator=generator))
        writes = [write for step in stratum[drawn] for write in commits[step]]
        chosen += [(len(firsts), len(stratum), write) for write in writes]
        firsts.append(stratum[drawn][0])
    numbers = [(n, write.position, write.token) for n, _, write in chosen]
    canvas, positions, targets = torch.tensor(numbers, dtype=torch.long).view(-1, 3).unbind(-1)
    weights = torch.tensor([weight for _, weight, _ in chosen], dtype=torch.float64)
    tokens = rollout.canvases()[torch.tensor(firsts, dtype=torch.long)]
    return Canvases(tokens, canvas, positions, targets, weights), [write for _, _, write in chosen]


def require_steps(steps: object, num_rollouts: int) -> None:
    """Raises ValueError unless `steps` is valid for `score` with this number of rollouts."""
    if steps == "all" or (isinstance(steps, int) and not isinstance(steps, bool) and steps > 0):
        return
    if not isinstance(steps, list | tuple) or not all(isinstance(item, Canvases) for item in steps):
        raise ValueError(
            'steps must be "all", a number of steps of at least 1, or a list with the Canvases of '
            f"each rollout, got {shown(steps)}."
        )
    if len(steps) != num_rollouts:
        raise ValueError(
            f"steps must hold the Canvases of each of {num_rollouts} rollouts, got {len(steps)}."
        )
