"""Targets are checked as strictly as models: nothing is made up, and nothing is left out."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dllm_decode import load_model, load_target
from dllm_decode.models.loading.model_folder import ASSETS


def config(**changes: Any) -> Callable[[Path], object]:
    """Returns a damage that sets keys of the configuration; functions get the present value."""

    def damage(folder: Path) -> None:
        path = folder / "config.json"
        settings = json.loads(path.read_text())
        for key, change in changes.items():
            settings[key] = change(settings[key]) if callable(change) else change
        settings.pop("layer_types", None)
        path.write_text(json.dumps(settings))

    return damage


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:5000])


def no_number(folder: Path) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    next(weights[name] for name in weights if "q_proj" in name)[0, 0] = torch.nan
    save_file(weights, path, metadata={"format": "pt"})


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    # A layer that no file has was initialised at random, and further ones were dropped.
    (config(num_hidden_layers=lambda n: n + 1), "must hold exactly the tensors .* missing model"),
    (config(num_hidden_layers=lambda n: n - 1), "must hold exactly the tensors .* left over model"),
    (config(intermediate_size=lambda n: n + 8), "of another shape"),
    # Errors of the library were passed on, and named no file.
    (config(model_type="other"), "cannot read the model in '{folder}'"),
    (config(hidden_size="64"), "cannot read the model in '{folder}'"),
    (cut, "cannot read the model in '{folder}'"),
    (no_number, "got NaN or infinity in .*q_proj"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_a_damaged_target_is_refused(
    damage: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    folder = tmp_path / "target"
    shutil.copytree(ASSETS / "mini-ar", folder)
    damage(folder)
    with pytest.raises(ValueError, match=message.replace("{folder}", re.escape(str(folder)))):
        load_target(folder, load_model("mini")[1])


@pytest.mark.usefixtures("no_checks_of_types")
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"device": "nope"}, "A device must be one that .* got 'nope'"),
        # Torch listed 24 kinds of devices.
        ({"device": "gpu"}, r"got 'gpu' \(torch has no device of this name\)\. Choose 'cpu'"),
        ({"device": "cuda:99"}, "got 'cuda:99'"),
        ({"device": 5.5}, r"A device must be one that .* got 5\.5"),
        ({"device": "meta"}, "A device must hold values, got 'meta'"),
        ({"tokenizer": None}, "tokenizer must be the tokenizer that load_model returns, got None"),
        ({"tokenizer": dict}, "tokenizer must be .*, got <class 'dict'>"),
    ],
)
def test_a_device_or_a_tokenizer_that_is_none_is_refused(
    options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        load_target("mini-ar", **{"tokenizer": load_model("mini")[1], **options})
