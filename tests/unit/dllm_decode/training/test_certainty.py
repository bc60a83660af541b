"""Certainty-forcing distillation, against what the authors' code computes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import load_tiny, new_tiny
from torch import Tensor

from dllm_decode.training import Batch
from dllm_decode.training.answer_blocks import blocks_of_answers
from dllm_decode.training.certainty import (
    Certainty,
    CertaintyForcing,
    CertaintyLoss,
    Curriculum,
    TrajectoryForcing,
    certainty,
    masks_of_states,
)

VECTORS = Path(__file__).parents[3] / "golden" / "data" / "losses"
EOS, MASK, VOCAB = 0, 1, 20


def recorded(method: str, key: str = "cases") -> list[dict[str, Any]]:
    text = (VECTORS / f"{method}_loss_vectors.json").read_text(encoding="utf-8")
    cases: list[dict[str, Any]] = json.loads(text)[key]
    return cases


def measured(case: dict[str, Any], logits: Tensor, columns: list[list[int]]) -> Certainty:
    answers = torch.tensor(case["answers"])
    masked = torch.zeros_like(answers, dtype=torch.bool)
    for row, chosen in enumerate(columns):
        masked[row, chosen] = True
    return certainty(logits, answers, masked, case["temperature"])


@pytest.mark.parametrize("method", ["dparallel", "d3llm"])
def test_losses_and_gradients_are_those_of_the_authors(method: str) -> None:
    # Cases without a second canvas have another loss, which nothing here uses.
    for case in (case for case in recorded(method) if case["complementary"]):
        logits, reverse_logits = (
            torch.tensor(case[key], dtype=torch.float64, requires_grad=True)
            for key in ("logits", "logits_rev")
        )
        weights = (case["temperature"], case["entropy_weight"])
        first = measured(case, logits, case["masked"])
        second = measured(case, reverse_logits, case["masked_rev"])
        loss = CertaintyLoss(method, *weights)(first, second)  # type: ignore[arg-type]  # both are
        loss.backward()
        assert loss.item() == pytest.approx(case["loss"], abs=1e-9)
        for leaf, key in ((logits, "grad"), (reverse_logits, "grad_rev")):
            expected = torch.tensor(case[key], dtype=torch.float64)
            torch.testing.assert_close(leaf.grad, expected, atol=1e-9, rtol=0)


def test_masks_are_those_of_the_authors_for_every_state_of_a_teacher() -> None:
    _, model = batch_and_model()
    for case in recorded("d3llm", "masking_cases"):
        length, size = len(case["answers"]) - case["prompt_length"], case["block_size"]
        order = torch.tensor(case["commit_order"])
        # Recorded states may begin after the first commit; ours begin before it.
        ranks = order.argsort() - int(case["first_state"] == "one committed")
        batch = Batch(torch.full((1, length), 5), torch.tensor([0]), length)
        blocks = blocks_of_answers(model, batch, size)
        learned = blocks.number == case["block_choice"]
        share = torch.full((1, length), case["mask_ratio"], dtype=torch.float64)
        masks = masks_of_states(ranks[None], blocks, learned, share, size)
        for part, key in ((masks.first, "masked"), (masks.second, "masked_rev")):
            columns = part[0].nonzero().flatten() + case["prompt_length"]
            assert columns.tolist() == case[key], case["id"]


def batch_and_model() -> tuple[Batch, Any]:
    torch.manual_seed(0)
    model = new_tiny(
        vocab_size=VOCAB, hidden_size=32, num_layers=1, mlp_hidden_size=48, mask_id=MASK,
        eos_ids=(EOS,),
    )  # fmt: skip
    tokens = torch.randint(2, VOCAB, (6, 14))
    tokens[:, 11:] = EOS
    tokens[0, :2] = EOS
    return Batch(tokens, torch.tensor([2, 0, 0, 0, 0, 0]), 10), model


def test_the_two_canvases_share_out_a_block_within_the_answer() -> None:
    batch, model = batch_and_model()
    objective = CertaintyForcing(model, 4, loss=CertaintyLoss("dparallel"))
    starts = set()
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        masks = objective.draw(batch, generator)
        assert not (masks.first & masks.second).any()
        block = masks.first | masks.second
        assert block.any(1).all()
        assert not block[:, 8:].any()
        assert not (block & masks.after).any()
        starts |= set(block.long().argmax(1).tolist())
    assert starts == {0, 4}


def test_a_block_causal_model_learns_every_block_at_once() -> None:
    model = load_tiny("fast_dllm_v2", dtype="float32")
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(5, 400, (2, 40), generator=generator)
    tokens[:, 35:] = model.eos_ids[0]
    ranks = torch.arange(30).clamp(max=26).expand(2, -1)
    batch = Batch(tokens, torch.tensor([0, 3]), 30, ranks)
    curriculum = Curriculum(block_lengths=(8,))
    forcing = TrajectoryForcing(model, curriculum=curriculum, loss=CertaintyLoss("d3llm"))
    forcing.advance(1.0)
    certain = CertaintyForcing(model, 8, loss=CertaintyLoss("dparallel"))
    for masks in (
        certain.draw(batch, torch.Generator().manual_seed(1)),
        forcing.draw(batch, torch.Generator().manual_seed(1), 8),
    ):
        # Each token up to the first EOS is masked in exactly one canvas; the others count as after.
        assert (masks.first ^ masks.second)[:, :26].all()
        assert masks.after[:, 26:].all()
        assert not masks.after[:, :26].any()
    # The teacher went from left to right, and 0.8 of each whole block of eight are still masked.
    blocks = blocks_of_answers(model, batch, 8)
    for row in range(2):
        for number in range(1, int(blocks.number[row, 24])):
            first = masks.first[row, blocks.number[row] == number].tolist()
            assert first == [False] + [True] * 7
    for objective in (certain, forcing):
        assert objective.loss(batch, torch.Generator().manual_seed(0)).isfinite()


def test_a_row_without_a_recorded_order_is_refused() -> None:
    batch, model = batch_and_model()
    forcing = TrajectoryForcing(model, curriculum=Curriculum(), loss=CertaintyLoss("d3llm"))
    with pytest.raises(ValueError, match="Every row must have the order"):
        forcing.loss(batch, torch.Generator())


def test_the_curricula_rise_to_their_ends() -> None:
    curriculum = Curriculum()
    uniform = torch.tensor([0.0, 1.0])
    assert curriculum.share(0.0, uniform).tolist() == pytest.approx([0.0, 0.8])
    assert curriculum.share(0.5, uniform).tolist() == pytest.approx([0.4, 0.8])
    assert curriculum.share(1.0, uniform).tolist() == pytest.approx([0.8, 0.8])
    lengths = [curriculum.block_length(i / 60) for i in range(61)]
    assert (lengths[0], lengths[19], lengths[30], lengths[60]) == (16, 16, 24, 32)
    assert lengths == sorted(lengths)
    assert 16 < lengths[25] < 24
