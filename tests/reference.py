"""LLaDA's decoding loop as its paper describes it, sharing nothing with the engine.

One row at a time, deliberately slow and obvious. Every forward scores the whole canvas in float64.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

LogitsOf = Callable[[Tensor], Tensor]
"""Maps token ids (1, L) to logits (1, L, V) that predict the same columns."""


class Reference(NamedTuple):
    """The answer, and which answer positions each forward committed, in the order of commitment."""

    tokens: list[int]
    commits: list[list[int]]


def fixed_schedule(
    logits_of: LogitsOf,
    prompt: Sequence[int],
    *,
    gen_length: int,
    block_length: int,
    steps_per_block: int,
    mask_id: int,
) -> Reference:
    """Commits the most confident positions, a fixed number a step, remainder first."""

    def quota(step: int, masks_at_entry: int, confidences: dict[int, float]) -> list[int]:
        base, rest = divmod(masks_at_entry, steps_per_block)
        count = base + (1 if step < rest else 0)
        return sorted(confidences, key=lambda position: -confidences[position])[:count]

    return _decode(logits_of, prompt, gen_length, block_length, mask_id, quota)


def threshold(
    logits_of: LogitsOf,
    prompt: Sequence[int],
    *,
    gen_length: int,
    block_length: int,
    threshold: float,
    mask_id: int,
) -> Reference:
    """Commits every position whose confidence reaches the threshold, or else the best one."""

    def confident(step: int, masks_at_entry: int, confidences: dict[int, float]) -> list[int]:
        chosen = [position for position, value in confidences.items() if value >= threshold]
        return chosen or [max(confidences, key=lambda position: confidences[position])]

    return _decode(logits_of, prompt, gen_length, block_length, mask_id, confident)


def _decode(
    logits_of: LogitsOf,
    prompt: Sequence[int],
    gen_length: int,
    block_length: int,
    mask_id: int,
    choose: Callable[[int, int, dict[int, float]], list[int]],
) -> Reference:
    canvas = torch.tensor([[*prompt, *[mask_id] * gen_length]])
    commits = []
    for block_start in range(0, gen_length, block_length):
        block = range(block_start, min(block_start + block_length, gen_length))
        step = 0
        masks_at_entry = len(block)
        while any(canvas[0, len(prompt) + position] == mask_id for position in block):
            logits = logits_of(canvas)
            logits[:, :, mask_id] = -torch.inf
            probabilities = torch.softmax(logits.to(torch.float64), dim=-1)
            best_probability, best_token = probabilities.max(dim=-1)
            confidences = {
                position: float(best_probability[0, len(prompt) + position])
                for position in block
                if canvas[0, len(prompt) + position] == mask_id
            }
            chosen = choose(step, masks_at_entry, confidences)
            for position in chosen:
                canvas[0, len(prompt) + position] = best_token[0, len(prompt) + position]
            if chosen:
                commits.append(sorted(chosen))
            step += 1
    return Reference(canvas[0, len(prompt) :].tolist(), commits)
