"""Targets are checked as strictly as models: nothing is made up, and nothing is left out."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dllm_decode import load_model, load_target
from dllm_decode.models.loading.find import ASSETS


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_model("mini")[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(ASSETS / "mini-ar", tmp_path / "target")
    return tmp_path / "target"


@pytest.mark.parametrize(("more", "message"), [(1, "missing"), (-1, "left over")])
def test_another_number_of_layers_is_refused(
    more: int, message: str, folder: Path, tokenizer: Any
) -> None:
    """A layer that no file has was initialised at random, and further ones were dropped."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["num_hidden_layers"] += more
    config.pop("layer_types", None)
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=rf"must hold exactly the tensors .* {message} model"):
        load_target(folder, tokenizer)


def test_another_shape_is_refused(folder: Path, tokenizer: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"intermediate_size": config["intermediate_size"] + 8}))
    with pytest.raises(ValueError, match="of another shape"):
        load_target(folder, tokenizer)


@pytest.mark.parametrize("changes", [{"model_type": "other"}, {"hidden_size": "64"}], ids=str)
def test_a_config_that_transformers_cannot_read_is_named_by_its_folder(
    changes: dict[str, Any], folder: Path, tokenizer: Any
) -> None:
    """Errors of the library were passed on, and named no file."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ValueError, match=f"cannot read the model in {str(folder)!r}"):
        load_target(folder, tokenizer)


def test_a_file_that_was_cut_short_is_named(folder: Path, tokenizer: Any) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ValueError, match="is damaged or cut short"):
        load_target(folder, tokenizer)


def test_a_weight_that_is_no_number_is_named(folder: Path, tokenizer: Any) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    name = next(name for name in weights if "q_proj" in name)
    weights[name][0, 0] = torch.nan
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=f"got NaN or infinity in {name}"):
        load_target(folder, tokenizer)
