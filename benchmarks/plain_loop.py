"""The plain loop that everything is compared with: the published algorithm, one row at a time."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

LogitsOf = Callable[[Tensor], Tensor]
"""Maps token ids (1, L) to logits (1, L, V) that predict the same columns."""


class LoopAnswer(NamedTuple):
    """The tokens that the loop wrote, and its number of forwards."""

    tokens: list[int]
    num_forwards: int


def run_loop(
    logits_of: LogitsOf,
    prompt: Sequence[int],
    *,
    gen_length: int,
    block_length: int,
    steps_per_block: int,
    mask_id: int,
) -> LoopAnswer:
    """Fills one answer, block after block, the most confident positions first.

    Every forward scores the whole canvas, and the softmax is in float64, as in LLaDA's code.

    Source: Nie et al. 2025, "Large Language Diffusion Models", https://arxiv.org/abs/2502.09992,
    low-confidence remasking with a linear schedule.
    """
    first = len(prompt)
    canvas = torch.tensor([[*prompt, *[mask_id] * gen_length]])
    num_forwards = 0
    for start in range(first, first + gen_length, block_length):
        stop = min(start + block_length, first + gen_length)
        quota, rest = divmod(stop - start, steps_per_block)
        for step in range(steps_per_block):
            count = quota + (step < rest)
            if count == 0:
                break
            logits = logits_of(canvas)
            num_forwards += 1
            logits[:, :, mask_id] = -torch.inf
            best = torch.softmax(logits.to(torch.float64), dim=-1).max(dim=-1)
            confidence = best.values[0].cpu().masked_fill(canvas[0] != mask_id, -torch.inf)
            chosen = start + confidence[start:stop].argsort(descending=True, stable=True)[:count]
            canvas[0, chosen] = best.indices[0].cpu()[chosen]
    return LoopAnswer(canvas[0, first:].tolist(), num_forwards)
