from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dllm_decode.models import new_llada
from dllm_decode.training.from_causal import start_from_causal

SIZES = {"vocab_size": 30, "hidden_size": 32}


def causal(folder: Path, num_layers: int = 2) -> LlamaForCausalLM:
    config = LlamaConfig(
        **SIZES,
        intermediate_size=48,
        num_hidden_layers=num_layers,
        num_attention_heads=2,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    return model


def masked(num_layers: int, mlp_hidden_size: int = 48):  # type: ignore[no-untyped-def]
    return new_llada(
        **SIZES,
        num_layers=num_layers,
        num_heads=2,
        mlp_hidden_size=mlp_hidden_size,
        mask_id=1,
        eos_ids=(0,),
        rope_theta=10_000.0,
    )


@pytest.mark.parametrize("num_layers", [2, 3])
def test_under_a_causal_mask_it_answers_as_the_causal_model_did(
    tmp_path: Path, num_layers: int
) -> None:
    torch.manual_seed(0)
    original, model = causal(tmp_path), masked(num_layers)
    start_from_causal(model, tmp_path)
    tokens = torch.randint(30, (2, 9))
    earlier = torch.ones(9, 9, dtype=torch.bool).tril().expand(2, -1, -1)
    with torch.no_grad():
        ours = model.transformer.head(model.transformer(tokens, attend=earlier))
        theirs = original(tokens).logits
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


def test_other_sizes_are_refused(tmp_path: Path) -> None:
    causal(tmp_path)
    with pytest.raises(ValueError, match=r"takes a tensor of shape .* choose the sizes"):
        start_from_causal(masked(2, mlp_hidden_size=64), tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="without one; train one"):
        start_from_causal(masked(2), tmp_path)
