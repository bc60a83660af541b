"""A masked language model of transformers decodes as a mask predictor."""

from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, ModernBertConfig, ModernBertForMaskedLM

from benchmarks.plain_loop import run_loop
from dllm_decode import DualCache, SelfVerify, decode
from dllm_decode.core.model import ForwardInputs
from dllm_decode.models.predictors.transformers_predictor import TransformersMaskPredictor
from samplers import FixedSchedule

V, MASK, EOS = 40, 39, 38
PROMPTS = [[3, 17, 4, 9, 22], [5], [7, 7, 30, 31, 12, 13, 14]]
OPTIONS: dict[str, Any] = {"gen_length": 8, "block_length": 4, "stop_at_eos": False}


def bert() -> Any:
    config = BertConfig(
        vocab_size=V, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=48, max_position_embeddings=64,
    )  # fmt: skip
    return BertForMaskedLM(config)


def modern_bert() -> Any:
    config = ModernBertConfig(
        vocab_size=V, hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=48, max_position_embeddings=64, local_attention=8,
        global_attn_every_n_layers=3, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        cls_token_id=1, sep_token_id=2, attn_implementation="sdpa",
    )  # fmt: skip
    return ModernBertForMaskedLM(config)


@pytest.fixture(params=[bert, modern_bert], ids=["BERT", "ModernBERT"])
def predictor(request: pytest.FixtureRequest) -> TransformersMaskPredictor:
    torch.manual_seed(0)
    model = request.param().double()
    with torch.no_grad():
        # Peaked and varied: a default initialisation answers one token everywhere.
        for part in model.parameters():
            if part.dim() > 1:
                part.normal_(0.0, 0.3)
    return TransformersMaskPredictor(model, mask_id=MASK, eos_ids=(EOS,))


@pytest.mark.parametrize("logit_shift", [0, 1])
def test_it_decodes_as_a_plain_loop_does_and_verifies_drafts(
    predictor: TransformersMaskPredictor, logit_shift: int
) -> None:
    predictor.logit_shift = logit_shift
    out = decode(predictor, PROMPTS, FixedSchedule(4), **OPTIONS)
    drafted = decode(predictor, PROMPTS, FixedSchedule(4), verifier=SelfVerify(3), **OPTIONS)
    assert torch.equal(out.tokens, drafted.tokens)
    assert drafted.accepted.sum() > 0
    assert len(set(out.tokens.flatten().tolist())) > 3

    def logits_of(canvas: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return predictor._model(input_ids=canvas).logits.roll(logit_shift, 1)

    for row, prompt in enumerate(PROMPTS):
        alone = run_loop(
            logits_of, prompt, gen_length=8, block_length=4, steps_per_block=4, mask_id=MASK
        )
        assert out.tokens[row].tolist() == alone.tokens


def test_a_cache_is_refused_with_a_remedy(predictor: TransformersMaskPredictor) -> None:
    with pytest.raises(ValueError, match=r"which computes every column. Use NoCache\(\)"):
        decode(predictor, PROMPTS, FixedSchedule(4), cache=DualCache(), **OPTIONS)


def test_queries_that_see_different_keys_are_refused(predictor: TransformersMaskPredictor) -> None:
    columns = torch.arange(3)[None]
    inputs = ForwardInputs(columns, columns, columns, attend=torch.eye(3, dtype=torch.bool)[None])
    with pytest.raises(ValueError, match="got queries that see different keys"):
        predictor.predict(inputs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask_id": 40}, r"mask_id must be in \[0, 40\), got \(40,\)"),
        ({"eos_ids": ()}, "eos_ids must be one or more ids, got none"),
        ({"banned_ids": (-1,)}, r"banned_ids must be in \[0, 40\)"),
        ({"logit_shift": 2}, "logit_shift must be 0 or 1, got 2"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TransformersMaskPredictor(bert(), **{"mask_id": MASK, "eos_ids": (EOS,), **options})
