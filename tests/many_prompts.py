"""Prompts and models for `decode_many`: answers of many lengths."""

import torch
from spied import Spied, tiny

from dllm_decode.models.base import ForwardInputs

TINY_PROMPTS = [
    [17, 40, 41, 300, 5, 77], [99], [7, 7, 250, 31, 12, 13, 14, 444, 90], [3, 1], [62, 8, 400, 21],
    [200], [45, 46, 47, 48, 49, 50, 51],
]  # fmt: skip


class Counted(Spied):
    """Keeps its calls, without a ledger of slots, which would have to follow the rows."""

    def predict(self, inputs: ForwardInputs) -> torch.Tensor:
        self.calls.append(inputs)
        return self.model.predict(inputs)


def ending(family: str) -> Counted:
    """A model that ends an answer with any of many tokens, so that answers end early."""
    model = Counted(tiny(family))
    model.eos_ids = (model.eos_ids[0], *range(0, 500, 12))
    return model


def templates_for(mask_id: int, eos_id: int) -> list[list[int]]:
    """Answers, one for each of the prompts, of which something is given: see the comments."""
    return [
        [mask_id, 33, mask_id, mask_id, 35],
        [],
        # The first block and half of the second, so that it begins while others are at work.
        [70, 71, 72, 73, 74, 75, 76, 77, 78, 79, mask_id, 81],
        # An answer that has ended before anything is decoded.
        [91, 92, 93, eos_id],
        [mask_id] * 13 + [55, 56],
        # An end with masks before it.
        [mask_id] * 6 + [eos_id],
        [44],
    ]
