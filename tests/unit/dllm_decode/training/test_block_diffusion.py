"""The loss of block-causal models: all blocks of an answer in one forward."""

import pytest
import torch
from tiny_models import load_tiny

from dllm_decode.engine.layout import block_causal_mask
from dllm_decode.models import MaskedTransformer
from dllm_decode.training import Batch
from dllm_decode.training.block_diffusion import BlockDiffusion, hidden_of_copies

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
            attend = block_causal_mask(columns, len(canvas), attends)
            with torch.no_grad():
                expected = model.transformer(canvas[None], columns, attend=attend)
            torch.testing.assert_close(
                together[row, position - length], expected[0, position - model.logit_shift],
                atol=1e-5, rtol=1e-4,
            )  # fmt: skip


def test_every_block_has_masks_and_some_have_more_than_one() -> None:
    model = load_tiny("sdar", dtype=torch.float32)
    objective = BlockDiffusion(model)
    blocks = batch(model).blocks(4)[:, max(LENGTHS) :]
    counts: set[int] = set()
    for seed in range(20):
        masked = objective.draw(blocks, torch.Generator().manual_seed(seed))
        for row, row_blocks in zip(masked, blocks, strict=True):
            for block in row_blocks.unique():
                counts.add(int(row[row_blocks == block].sum()))
    assert counts == {1, 2, 3, 4}


def test_masks_from_the_right_leave_the_beginning_of_a_block() -> None:
    model = load_tiny("sdar", dtype=torch.float32)
    blocks = batch(model).blocks(8)[:, max(LENGTHS) :]
    masked = BlockDiffusion(model, ordered_share=1.0).draw(blocks, torch.Generator().manual_seed(0))
    same_block = blocks[:, 1:] == blocks[:, :-1]
    assert not (same_block & masked[:, :-1] & ~masked[:, 1:]).any()
    assert (same_block & ~masked[:, :-1] & masked[:, 1:]).any()


def test_masks_by_confidence_hide_what_the_model_is_least_sure_of() -> None:
    model = load_tiny("fast_dllm_v2", dtype=torch.float32)
    examples = batch(model)
    objective = BlockDiffusion(model, confident_share=1.0)
    blocks = examples.blocks(8)
    confidence = objective.confidence(examples, 8)
    everything = torch.ones(len(LENGTHS), GEN_LENGTH, dtype=torch.bool)
    hidden = hidden_of_copies(model, examples, everything, 8)
    expected = model.transformer.head(hidden).softmax(-1).amax(-1)
    torch.testing.assert_close(confidence, expected)
    answers = blocks[:, max(LENGTHS) :]
    masked = objective.draw(answers, torch.Generator().manual_seed(0), confidence)
    for sure, hidden_ones, row_blocks in zip(confidence, masked, answers, strict=True):
        for block in row_blocks.unique():
            inside = row_blocks == block
            visible = sure[inside & ~hidden_ones]
            assert (sure[inside & hidden_ones].max() <= visible).all()
    assert objective.loss(examples, torch.Generator().manual_seed(0)).isfinite()


def test_the_loss_reads_no_token_behind_the_block_of_the_end() -> None:
    model = load_tiny("fast_dllm_v2", dtype=torch.float32)
    examples = batch(model)
    objective = BlockDiffusion(model)
    loss = objective.loss(examples, torch.Generator().manual_seed(0))
    # The first answer ends at column 14 of its text, in a block that ends at 16.
    examples.tokens[0, max(LENGTHS) + 7 :] = 7
    assert torch.equal(objective.loss(examples, torch.Generator().manual_seed(0)), loss)
    examples.tokens[0, max(LENGTHS) + 6] = 7
    assert not torch.equal(objective.loss(examples, torch.Generator().manual_seed(0)), loss)
