"""LoRA adapters in PEFT's format are merged; what does not fit is refused by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import MODELS
from tiny_models import load_without_tokenizer as load_model
from torch import Tensor

from dllm_decode.models.families import FAMILIES

TARGETS = {
    "llada": ("q_proj", "k_proj", "v_proj", "attn_out", "ff_proj", "up_proj"),
    "dream": ("q_proj", "o_proj", "gate_proj", "down_proj"),
    "sdar": ("v_proj", "up_proj"),
}


def official(family: str) -> dict[str, Tensor]:
    return load_file(MODELS / family / "model.safetensors")


def write(folder: Path, family: str, *, rank: int = 3, **config: Any) -> dict[str, Tensor]:
    """Writes an adapter, and returns what must be added to each matrix at scale 1."""
    generator = torch.Generator().manual_seed(0)
    weights, added = {}, {}
    for name, weight in official(family).items():
        module = name.removesuffix(".weight")
        if not name.endswith(".weight") or module.rpartition(".")[2] not in TARGETS[family]:
            continue
        down = torch.randn(rank, weight.shape[1], generator=generator)
        up = torch.randn(weight.shape[0], rank, generator=generator)
        weights[f"base_model.model.{module}.lora_A.weight"] = down
        weights[f"base_model.model.{module}.lora_B.weight"] = up
        added[name] = up @ down
    folder.mkdir(exist_ok=True)
    save_file(weights, folder / "adapter_model.safetensors")
    defaults = {
        "peft_type": "LORA", "r": rank, "lora_alpha": 6, "target_modules": list(TARGETS[family]),
        "bias": "none", "lora_dropout": 0.1, "task_type": "CAUSAL_LM",
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(defaults | config))
    return added


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize("family", TARGETS)
@pytest.mark.parametrize(
    ("config", "scale"),
    [({}, 2.0), ({"use_rslora": True}, 6 / 3**0.5), ({"rank": 5, "lora_alpha": 5}, 1.0)],
    ids=["alpha over r", "rank-stabilised", "alpha is r"],
)
def test_the_product_is_added_and_nothing_else_changes(
    family: str, config: dict[str, Any], scale: float, tmp_path: Path
) -> None:
    added = write(tmp_path, family, **config)
    model, _ = load_model(MODELS / family, dtype="float64", adapter=tmp_path)
    merged = FAMILIES[family].tensors(model.transformer)
    assert len(added) >= 4
    for name, weight in official(family).items():
        expected = weight.double()
        if name in added:
            expected = expected + scale * added[name].double()
        torch.testing.assert_close(merged[name], expected, rtol=1e-5, atol=1e-5)
    # A filter that was trained for one must not be served to the other.
    plain, _ = load_model(MODELS / family)
    assert len({plain.fingerprint, model.fingerprint}) == 2


def test_adapters_of_another_model_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "dream")
    with pytest.raises(ValueError, match=r"must fit its base model, got .* differences"):
        load_model(MODELS / "llada", adapter=tmp_path)
    path = tmp_path / "adapter_model.safetensors"
    first = {name: part for name, part in load_file(path).items() if ".layers.0." in name}
    save_file(first, path)
    with pytest.raises(ValueError, match=r"nothing for model\.layers\.1\.self_attn\.q_proj"):
        load_model(MODELS / "dream", adapter=tmp_path)
    write(tmp_path, "dream", layers_to_transform=[0])
    save_file(first, path)
    load_model(MODELS / "dream", adapter=tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"peft_type": "IA3"}, "'peft_type' must be 'LORA' for an adapter that is merged"),
        ({"use_dora": True}, "'use_dora' must be False"),
        ({"bias": "all"}, "'bias' must be 'none'"),
        ({"modules_to_save": ["lm_head"]}, "'modules_to_save' must be null"),
        ({"init_lora_weights": "pissa"}, "got 'pissa'. Merge it with PEFT"),
        ({"r": 4}, "'r' must be the rank of the weights of .*, 3, got 4"),
        ({"use_rslora": "false"}, "config.json': 'use_rslora' must be true or false, got 'false'"),
        ({"r": 3.0}, "'r' must be an integer from 1 to .*, got 3.0"),
        ({"lora_alpha": "x"}, "'lora_alpha' must be a number above 0 .*, got 'x'"),
        ({"alpha_pattern": {"q_proj": 6}}, r"'alpha_pattern' must be \{\} .* Merge it with PEFT"),
        ({"rank_pattern": {"q_proj": 3}}, r"'rank_pattern' must be \{\} .* Merge it with PEFT"),
    ],
    ids=str,
)
def test_other_kinds_are_refused(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    write(tmp_path, "llada", **config)
    with pytest.raises(ValueError, match=message):
        load_model(MODELS / "llada", adapter=tmp_path)


Weights = dict[str, Tensor]
DAMAGES: list[tuple[Callable[[Weights, str], Weights], str]] = [
    (lambda every, key: {name: every[name] for name in every if name != key}, "a lora_A of shape"),
    (lambda every, key: every | {key: every[key] * torch.nan},
     "got NaN or infinity in base_model"),
    (lambda every, key: every | {"base_model.model.x.lora_magnitude_vector": torch.ones(2)},
     "lora_A and lora_B of linear maps only, got base_model"),
    # The tensor that came last was merged.
    (lambda every, key: every | {key.replace(".weight", ".default.weight"): every[key].clone()},
     "must hold one adapter, got a second tensor for"),
    # Integers were multiplied as if they were weights.
    (lambda every, key: every | {key: every[key].to(torch.int8)},
     r"got I8 for .*lora_.* in .*adapter_model\.safetensors'"),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_factors_that_are_no_adapter_are_refused(
    damage: Callable[[Weights, str], Weights], message: str, tmp_path: Path
) -> None:
    write(tmp_path, "llada")
    path = tmp_path / "adapter_model.safetensors"
    weights = load_file(path)
    save_file(damage(weights, next(iter(weights))), path)
    with pytest.raises(ValueError, match=message):
        load_model(MODELS / "llada", adapter=tmp_path)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    write(tmp_path, "llada")
    path = tmp_path / "adapter_model.safetensors"
    path.write_bytes(b"cut")
    with pytest.raises(ValueError, match="is damaged or cut short"):
        load_model(MODELS / "llada", adapter=tmp_path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="An adapter folder must hold an adapter_model"):
        load_model(MODELS / "llada", adapter=tmp_path)
