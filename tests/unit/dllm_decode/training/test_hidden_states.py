"""All blocks of an answer in one forward of a block-causal model."""

import pytest
import torch
from tiny_models import load_tiny

from dllm_decode.engine.layout import attention_mask
from dllm_decode.models import MaskedTransformer
from dllm_decode.training import Batch
from dllm_decode.training.hidden_states import hidden_of_copies

GEN_LENGTH = 21
LENGTHS = (9, 14, 16, 3)
"""Lengths of prompts: an answer begins inside a block of 8, or at the start of one."""


def batch(model: MaskedTransformer) -> Batch:
    generator = torch.Generator().manual_seed(0)
    width = max(LENGTHS)
    tokens = torch.randint(10, 400, (len(LENGTHS), width + GEN_LENGTH), generator=generator)
    pads = width - torch.tensor(LENGTHS)
    tokens[torch.arange(width + GEN_LENGTH) < pads[:, None]] = model.eos_ids[0]
    # The first answer ends early, the last one not at all.
    tokens[0, width + 5 :] = model.eos_ids[0]
    tokens[1, width + 12 :] = model.eos_ids[0]
    return Batch(tokens, pads, GEN_LENGTH)


@pytest.mark.parametrize("family", ["fast_dllm_v2", "sdar"])
@pytest.mark.parametrize("block_length", [8, 5, 16])
def test_one_forward_over_all_blocks_equals_a_forward_for_each(
    family: str, block_length: int
) -> None:
    """The blocks before a block are known, and nothing follows it, as in a decode."""
    model = load_tiny(family, dtype=torch.float32)
    examples = batch(model)
    model_block_length = model.causal_block_length
    attends = model_block_length if block_length % model_block_length == 0 else block_length
    masked = torch.rand(len(LENGTHS), GEN_LENGTH, generator=torch.Generator().manual_seed(1)) < 0.5
    with torch.no_grad():
        together = hidden_of_copies(model, examples, masked, block_length)
    for row, length in enumerate(LENGTHS):
        alone = examples.tokens[row, examples.pads[row] :]
        hidden_ones = torch.cat((torch.zeros(length, dtype=torch.bool), masked[row]))
        for position in range(length, length + GEN_LENGTH):
            begin = position // block_length * block_length
            canvas = alone[: begin + block_length].clone()
            canvas[begin:][hidden_ones[begin : begin + block_length]] = model.mask_id
            columns = torch.arange(len(canvas))[None]
            attend = attention_mask(columns, len(canvas), attends)
            with torch.no_grad():
                expected = model.transformer(canvas[None], columns, attend=attend)
            torch.testing.assert_close(
                together[row, position - length], expected[0, position - model.logit_shift],
                atol=1e-5, rtol=1e-4,
            )  # fmt: skip
