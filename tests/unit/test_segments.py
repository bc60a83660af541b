"""Losses that learn what a blockwise decoder asks for: one segment, or all blocks of an answer."""

import pytest
import torch

from dllm_decode.models import MaskedTransformer, new_llada
from dllm_decode.training import Batch
from dllm_decode.training.block_causal import AllBlocks, who_sees_whom
from dllm_decode.training.segments import SegmentDiffusion, SegmentSampler

EOS, MASK, VOCAB = 0, 1, 20


def tiny_model() -> MaskedTransformer:
    return new_llada(
        vocab_size=VOCAB,
        hidden_size=32,
        num_layers=2,
        num_heads=2,
        mlp_hidden_size=48,
        mask_id=MASK,
        eos_ids=(EOS,),
    )


def batch() -> Batch:
    torch.manual_seed(0)
    tokens = torch.randint(2, VOCAB, (4, 13))
    tokens[:, 10:] = EOS
    tokens[1, :2] = EOS
    return Batch(tokens, torch.tensor([0, 2, 0, 0]), 9)


def test_only_masks_of_the_segment_are_learned_and_all_behind_it_is_masked() -> None:
    answers = batch().tokens[:, 4:]
    sampler = SegmentSampler(length=3, anywhere_share=0.0)
    starts = set()
    for seed in range(30):
        masked, learned = sampler.draw(answers, EOS, torch.Generator().manual_seed(seed))
        assert (masked | ~learned).all()
        assert learned.any(1).all()
        for row, hidden in zip(learned, masked, strict=True):
            positions = row.nonzero().flatten()
            first, last = int(positions[0]), int(positions[-1])
            assert last - first < 3
            assert hidden[first + 3 :].all()
            starts.add(first)
    # The answers end at position 6, where a segment may still begin.
    assert 0 in starts
    assert 6 in starts
    assert max(starts) <= 8


def test_without_segments_every_mask_is_learned() -> None:
    answers = batch().tokens[:, 4:]
    sampler = SegmentSampler(anywhere_share=1.0)
    masked, learned = sampler.draw(answers, EOS, torch.Generator().manual_seed(0))
    assert torch.equal(masked, learned)


def test_a_block_is_predicted_as_if_nothing_behind_it_were_there() -> None:
    """One forward over all blocks equals a forward for each, on what precedes it alone."""
    model, given = tiny_model(), batch()
    blocks = torch.arange(9) // 4
    copy = given.tokens[:, 4:].masked_fill(torch.rand(4, 9) < 0.5, MASK)
    columns = (torch.arange(13) - given.pads[:, None]).clamp(min=0)
    with torch.no_grad():
        together = model.transformer(
            torch.cat((given.tokens, copy), 1),
            torch.cat((columns, columns[:, 4:]), 1),
            attend=who_sees_whom(given, blocks),
        )[:, 13:]
        for block in range(3):
            end = 4 + min(9, 4 * block + 4)
            alone = given.tokens[:, :end].clone()
            alone[:, 4 + 4 * block :] = copy[:, 4 * block : end - 4]
            order = torch.cat((torch.full((4,), -1), blocks))[:end]
            attend = (order[:, None] >= order) & (torch.arange(end) >= given.pads[:, None, None])
            expected = model.transformer(alone, columns[:, :end], attend=attend)
            found = together[:, 4 * block : end - 4]
            torch.testing.assert_close(found, expected[:, 4 + 4 * block :], atol=1e-5, rtol=0)


def test_every_block_has_masks_and_some_have_more_than_one() -> None:
    objective = AllBlocks(tiny_model(), (4,))
    blocks = (torch.arange(9) + 2) // 4
    counts = set()
    for seed in range(20):
        masked = objective.draw(4, blocks, torch.Generator().manual_seed(seed))
        for block in range(3):
            counts |= set(masked[:, blocks == block].sum(1).tolist())
    assert counts == {1, 2, 3, 4}


@pytest.mark.parametrize(("whole_share", "first"), [(0.0, {1, 2, 3, 4}), (1.0, {4})])
def test_the_first_block_is_whole_as_often_as_asked(whole_share: float, first: set[int]) -> None:
    objective = AllBlocks(tiny_model(), (4,), whole_share=whole_share)
    found = set()
    for seed in range(40):
        blocks = objective.draw_blocks(9, torch.Generator().manual_seed(seed))
        lengths = blocks.bincount().tolist()
        assert len(blocks) == 9
        assert set(lengths[1:-1]) <= {4}
        found.add(lengths[0])
    assert found == first


def test_both_losses_reach_every_weight() -> None:
    model = tiny_model()
    for objective in (SegmentDiffusion(model, SegmentSampler(3)), AllBlocks(model, (1, 4))):
        model.zero_grad()
        objective.loss(batch(), torch.Generator().manual_seed(0)).backward()
        assert all(weight.grad is not None for weight in model.parameters())


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: SegmentSampler(length=0), "length must be at least 1, got 0"),
        (lambda: SegmentSampler(anywhere_share=1.5), "anywhere_share must be a probability"),
        (lambda: AllBlocks(tiny_model(), ()), "block_lengths must be lengths"),
        (lambda: AllBlocks(tiny_model(), ordered_share=-1.0), "ordered_share must be"),
        (lambda: AllBlocks(tiny_model(), whole_share=2.0), "whole_share must be"),
    ],
)
def test_settings_out_of_range_are_refused(make, sentence: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=sentence):
        make()
