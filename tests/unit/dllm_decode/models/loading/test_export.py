"""A model is saved as its authors would have written it."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_models import EVERY_FAMILY, MODELS, OPTIONS, load_tiny, new_tiny
from tiny_models import load_without_tokenizer as load_model

from dllm_decode import ForwardInputs
from dllm_decode import load_model as load_required
from dllm_decode.cli.main import main
from dllm_decode.models import MaskedTransformer


def logits(model: MaskedTransformer) -> torch.Tensor:
    tokens, columns = torch.arange(5, 21)[None], torch.arange(16)[None]
    return model.predict(ForwardInputs(tokens=tokens, positions=columns, wanted=columns))


@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_a_saved_model_has_the_official_names_and_its_own_logits(
    family: str, tmp_path: Path
) -> None:
    model = load_tiny(family)
    model.save(tmp_path)
    official = load_file(MODELS / family / "model.safetensors")
    saved = load_file(tmp_path / "model.safetensors")
    assert official.keys() == saved.keys()
    assert all(torch.equal(official[name], saved[name]) for name in official)
    # The saved files state [MASK], so that only the name of a family must be given again.
    options = {key: v for key, v in OPTIONS.get(family, {}).items() if key == "family"}
    loaded, _ = load_model(tmp_path, device="cpu", **options)
    assert loaded.fingerprint == model.fingerprint
    assert (loaded.mask_id, loaded.eos_ids) == (model.mask_id, model.eos_ids)
    assert loaded.causal_block_length == model.causal_block_length
    assert torch.equal(logits(loaded), logits(model))
    config = json.loads((MODELS / family / "config.json").read_text())
    written = json.loads((tmp_path / "config.json").read_text())
    added = written.keys() - config.keys()
    assert added <= {"mask_token_id", "block_length", "block_size", "bd_size", "torch_dtype"}
    assert written.items() >= {k: v for k, v in config.items() if "dtype" not in k}.items()


def test_a_changed_model_is_saved_with_its_tokenizer_and_in_another_dtype(tmp_path: Path) -> None:
    model, tokenizer = load_required("mini", device="cpu", dtype="float32")
    model.transformer.embedding.weight.data[0, 0] = 0.5
    model.save(str(tmp_path / "new"), dtype=torch.bfloat16)
    loaded, words = load_required(tmp_path / "new", device="cpu")
    assert loaded.dtype == torch.bfloat16
    assert loaded.transformer.embedding.weight[0, 0] == 0.5
    assert words.get_vocab() == tokenizer.get_vocab()
    assert words.chat_template == tokenizer.chat_template
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert {"generation_config.json", "tokenizer.json"} <= names
    assert json.loads((tmp_path / "new/config.json").read_text())["torch_dtype"] == "bfloat16"


def test_a_fresh_model_is_saved_too(tmp_path: Path) -> None:
    model = new_tiny()
    model.save(tmp_path)
    assert torch.equal(logits(load_model(tmp_path, device="cpu")[0]), logits(model))


def test_a_model_is_not_saved_over_its_own_files(tmp_path: Path) -> None:
    shutil.copytree(MODELS / "sdar", tmp_path / "own")
    model, _ = load_model(tmp_path / "own", device="cpu")
    with pytest.raises(ValueError, match="must go to a folder of its own"):
        model.save(tmp_path / "own")
    assert (tmp_path / "own" / "model.safetensors").is_file()


def test_the_command_line_exports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    assert main(["export", "mini", str(folder), "--dtype", "float32"]) == 0
    assert capsys.readouterr().out == f"{folder} holds mini, in float32.\n"
    exported, model = load_required(folder)[0], load_required("mini", dtype="float32")[0]
    assert exported.dtype == torch.float32
    assert torch.equal(logits(exported), logits(model))
    assert main(["export", "mini-uniform", str(tmp_path / "other")]) == 2
    assert "must be a network of this package" in capsys.readouterr().err
