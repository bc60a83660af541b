"""The example that trains a Learn2PD filter writes one that decodes."""

import runpy
from pathlib import Path

import pytest
from families_under_test import load_without_tokenizer as load_model

from dllm_decode import decode
from dllm_decode.models import new_llada, save_model
from eval.tasks import build_tokenizer
from samplers import Learn2PD

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_filter.py"


def test_a_filter_is_trained_and_decodes_the_model_it_was_trained_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, output = tmp_path / "tiny", tmp_path / "filter.safetensors"
    tokenizer = build_tokenizer()
    model = new_llada(
        vocab_size=len(tokenizer), hidden_size=16, num_layers=1, num_heads=2, mlp_hidden_size=32,
        mask_id=int(tokenizer.mask_token_id), eos_ids=(int(tokenizer.eos_token_id),),
    )  # fmt: skip
    save_model(model, folder)
    tokenizer.save_pretrained(folder)
    runpy.run_path(str(EXAMPLE))["main"](
        [
            *("--model", str(folder), "--output", str(output), "--prompts", "20"),
            *("--gen-length", "16", "--block-length", "8", "--steps", "20"),
        ]
    )
    shown = capsys.readouterr().out
    assert "held-out blocks" in shown
    assert "0.96" in shown
    model, _ = load_model(folder)
    out = decode(model, [[5, 6]], Learn2PD(str(output)), gen_length=16, block_length=8)
    assert out.forwards <= 16
    with pytest.raises(SystemExit, match="at least 10 prompts"):
        runpy.run_path(str(EXAMPLE))["main"](["--model", str(folder), "--prompts", "6"])
