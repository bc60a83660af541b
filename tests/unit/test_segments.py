"""Losses that learn what a blockwise decoder asks for: one segment, or all blocks of an answer."""

import pytest
import torch
from torch.nn import functional as F

from dllm_decode.models import MaskedTransformer, new_llada
from dllm_decode.training import Batch
from dllm_decode.training.block_causal import AllBlocks
from dllm_decode.training.next_token import NextToken
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


@pytest.mark.parametrize("shift", [0, 1])
def test_a_block_is_predicted_as_if_nothing_behind_it_were_there(shift: int) -> None:
    """One forward over all blocks equals a forward for each, on what precedes it alone."""
    model, given = tiny_model(), batch()
    model.logit_shift = shift
    blocks = torch.arange(9) // 4
    masked = torch.rand(4, 9) < 0.5
    noisy = given.tokens[:, 4:].masked_fill(masked, MASK)
    columns = (torch.arange(13) - given.pads[:, None]).clamp(min=0)
    with torch.no_grad():
        together = AllBlocks(model).hidden(given, blocks, masked)
        for block in range(3):
            begin, end = 4 + 4 * block, 4 + min(9, 4 * block + 4)
            # A lead takes the place of the token before the block.
            known, lead = given.tokens[:, :begin], given.tokens[:, begin - shift : begin]
            alone = torch.cat((known, lead, noisy[:, begin - 4 : end - 4]), 1)
            places = torch.cat((columns[:, :begin], columns[:, begin - shift : end]), 1)
            order = torch.cat((torch.full((4,), -1), blocks))[:begin]
            own = order[:, None] >= order
            of_block = torch.ones(end - begin + shift, alone.shape[1], dtype=torch.bool)
            of_block[:, begin - shift : begin] = False
            attend = torch.cat((F.pad(own, (0, len(of_block))), of_block))
            attend = attend & (torch.arange(alone.shape[1]) >= given.pads[:, None, None])
            expected = model.transformer(alone, places, attend=attend)[:, begin:]
            found = together[:, begin - 4 : end - 4]
            torch.testing.assert_close(found, expected[:, : end - begin], atol=1e-5, rtol=0)


def test_a_shifted_model_is_asked_at_the_column_before() -> None:
    """The loss reads what a decode reads: all columns seen, the logits of the one before."""
    model, given = tiny_model(), batch()
    model.logit_shift = 1
    answers = given.tokens[:, 4:].masked_fill(torch.rand(4, 9) < 0.5, MASK)
    found = SegmentDiffusion(model, SegmentSampler())._plain.logits(given, answers)
    tokens = torch.cat((given.tokens[:, :4], answers), 1)
    for row in range(4):
        alone = tokens[row : row + 1, given.pads[row] :]
        hidden = model.transformer(alone, torch.arange(alone.shape[1])[None])
        expected = model.transformer.head(hidden)[0, -10:-1]
        torch.testing.assert_close(found[row], expected, atol=1e-5, rtol=1e-4)


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


def test_the_next_token_is_learned_from_those_before_and_the_whole_prompt() -> None:
    """One forward over an answer equals a forward for each of its tokens."""
    model, given = tiny_model(), batch()
    model.logit_shift = 1
    losses = []
    with torch.no_grad():
        found = NextToken(model).loss(given, torch.Generator())
        for row in range(4):
            alone = given.tokens[row : row + 1, given.pads[row] :]
            # The prompt, six tokens, and the EOS that ends them.
            first = alone.shape[1] - 9
            for end in range(first, first + 7):
                order = torch.arange(end).clamp(min=first - 1)
                attend = (order[:, None] >= order)[None]
                hidden = model.transformer(alone[:, :end], torch.arange(end)[None], attend=attend)
                logits = model.transformer.head(hidden[:, -1])
                losses.append(F.cross_entropy(logits, alone[:, end]))
    torch.testing.assert_close(found, torch.stack(losses).mean(), atol=1e-5, rtol=0)


def test_all_losses_reach_every_weight() -> None:
    model = tiny_model()
    model.logit_shift = 1
    losses = (
        SegmentDiffusion(model, SegmentSampler(3)), AllBlocks(model, (1, 4)), NextToken(model)
    )  # fmt: skip
    for objective in losses:
        model.zero_grad()
        objective.loss(batch(), torch.Generator().manual_seed(0)).backward()
        assert all(weight.grad is not None for weight in model.parameters())


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: NextToken(tiny_model()), "must be shifted by 1 to predict the next token, got 0"),
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
