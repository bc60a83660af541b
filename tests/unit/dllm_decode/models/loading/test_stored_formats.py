"""Weights that were quantised before they were stored: recorded matrices, whole checkpoints."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import MODELS, edit_config, load_without_tokenizer, new_tiny, write_gemma
from torch import Tensor

from dllm_decode.cli.main import main
from dllm_decode.models import MaskedTransformer, save_model
from dllm_decode.models.loading.stored_formats import StoredFormat, stored_format

GOLDEN = load_file(MODELS.parent / "quantised" / "golden.safetensors")
GROUP = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 16, "symmetric": True}
FLOAT = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}


def compressed(kind: str, weights: dict[str, Any]) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": kind, "config_groups": groups}


CONFIGS: dict[str, dict[str, Any]] = {
    "gptq_v1": {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": False},
    "int4_sym": compressed("pack-quantized", GROUP),
    "int4_asym": compressed("pack-quantized", GROUP | {"symmetric": False}),
    "fp8_row": compressed("float-quantized", FLOAT),
    "nvfp4_ct": compressed("nvfp4-pack-quantized", GROUP | {"type": "float"}),
    "nvfp4_modelopt": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
}


def format_of(kind: str) -> StoredFormat:
    return stored_format({"quantization_config": CONFIGS[kind]}, file="config.json")


def parts_of(kind: str) -> dict[str, Tensor]:
    """Returns the recorded parts of one matrix of 48 rows and 64 columns."""
    named = {name.partition(".")[::2]: part for name, part in GOLDEN.items()}
    return {part: tensor for (key, part), tensor in named.items() if key == kind}


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_matrix_is_the_recorded_one(kind: str) -> None:
    parts = parts_of(kind)
    expected = parts.pop("dequantised")
    got = format_of(kind).read("x", parts)
    # compressed-tensors rounds to the bfloat16 of its scales; the rest is recorded in float32.
    is_rounded = kind not in ("gptq_v1", "nvfp4_modelopt")
    assert expected.std() > 0.5
    assert (got - expected).abs().max() <= (0.0079 if is_rounded else 1e-6)
    assert (got.bfloat16().float() - expected).abs().max() <= 0.0157


# Matrices of the tiny model that have the recorded shape.
NAMES = [f"model.transformer.blocks.{layer}.ff_out" for layer in range(2)]


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    model = new_tiny(hidden_size=48, mlp_hidden_size=64, num_heads=4, vocab_size=64)
    save_model(model, tmp_path / "plain", dtype=torch.float16)
    return tmp_path / "plain"


def write(plain: Path, kind: str, config: dict[str, Any] | None = None) -> Path:
    """Stores the recorded matrix in both layers, in one of them in another file than its scales."""
    folder = plain.parent / kind
    shutil.copytree(plain, folder)
    edit_config(folder, quantization_config=CONFIGS[kind] if config is None else config)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    later: dict[str, Tensor] = {}
    for name in NAMES:
        del tensors[f"{name}.weight"]
        parts = parts_of(kind)
        del parts["dequantised"]
        for number, (part, tensor) in enumerate(sorted(parts.items())):
            target = later if number % 2 and name == NAMES[1] else tensors
            target[f"{name}.{part}"] = tensor.clone()
    path.unlink()
    places = {}
    for file, held in (("a.safetensors", tensors), ("b.safetensors", later)):
        save_file(held, folder / file)
        places |= dict.fromkeys(held, file)
    index = {"weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def load(folder: Path, **options: Any) -> MaskedTransformer:
    model, _ = load_without_tokenizer(folder, device="cpu", **options)
    assert isinstance(model, MaskedTransformer)
    return model


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_checkpoint_is_loaded_in_bfloat16_and_saved_as_one_that_was_not_quantised(
    kind: str, plain: Path
) -> None:
    model, original = load(write(plain, kind)), load(plain)
    assert (model.dtype, original.dtype) == (torch.bfloat16, torch.float16)
    parts, others = model.transformer.parts(), original.transformer.parts()
    unpacked = format_of(kind).read("x", parts_of(kind))
    for name, part in parts.items():
        expected = unpacked if "down" in name else others[name]
        assert torch.equal(part, expected.bfloat16()), name
    assert load(plain.parent / kind, dtype="float32").fingerprint == model.fingerprint
    save_model(model, plain.parent / "saved")
    saved = load(plain.parent / "saved").transformer.parts()
    assert all(torch.equal(saved[name], part) for name, part in parts.items())


def test_the_command_says_how_weights_are_stored(
    plain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", str(write(plain, "gptq_v1"))]) == 0
    assert "stored         by GPTQ; loaded in bfloat16" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"quant_method": "awq", "bits": 4}, "quantization_config of awq in "),
        ({"quant_method": "fp8"}, "quantization_config of fp8 in "),
        ({"bits": 4}, "quantization_config of an unknown method in "),
        ("gptq", "quantization_config of 'gptq' in "),
        (CONFIGS["gptq_v1"] | {"checkpoint_format": "gptq_v2"}, "of GPTQ as gptq_v2 in "),
        (CONFIGS["gptq_v1"] | {"bits": 3}, "'quantization_config.bits' must be 4 or 8, got 3"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "of modelopt FP8 in "),
        (compressed("int-quantized", GROUP), "of compressed-tensors int-quantized in "),
        (compressed("pack-quantized", GROUP | {"actorder": "group"}),
         "weights.actorder' must be null, 'weight' or 'static', got 'group'"),
        (compressed("pack-quantized", GROUP | {"type": "float"}), "pack-quantized of the type"),
        (CONFIGS["int4_sym"] | {"kv_cache_scheme": {"num_bits": 8}},
         "'quantization_config.kv_cache_scheme' must be absent or null"),
        (CONFIGS["int4_sym"] | {"config_groups": {
            "a": {"weights": GROUP}, "b": {"weights": GROUP | {"num_bits": 8}}}},
         "pack-quantized with 2 kinds of groups"),
    ],
    ids=str,
)  # fmt: skip
def test_a_method_that_cannot_be_read_is_refused_by_name(
    config: Any, named: str, plain: Path
) -> None:
    edit_config(plain, quantization_config=config)
    with pytest.raises(ValueError, match=re.escape(named)):
        load(plain)
    assert main(["models", str(plain)]) == 2


def drop(folder: Path, name: str) -> None:
    index = folder / "model.safetensors.index.json"
    places = json.loads(index.read_text())["weight_map"]
    path = folder / places.pop(name)
    tensors = load_file(path)
    del tensors[name]
    save_file(tensors, path)
    index.write_text(json.dumps({"weight_map": places}))


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("gptq_v1", "scales"), ("gptq_v1", "g_idx"), ("int4_sym", "weight_scale"),
        ("int4_asym", "weight_zero_point"), ("fp8_row", "weight_scale"),
        ("nvfp4_ct", "weight_global_scale"), ("nvfp4_modelopt", "weight_scale_2"),
    ],
)  # fmt: skip
def test_a_missing_part_is_named_with_its_matrix_and_method(
    kind: str, part: str, plain: Path
) -> None:
    folder = write(plain, kind)
    drop(folder, f"{NAMES[1]}.{part}")
    message = f"{NAMES[1]}, which is stored by {format_of(kind).name}, must .* none for {part}"
    with pytest.raises(ValueError, match=message):
        load(folder)


def test_groups_that_do_not_fit_are_named(plain: Path) -> None:
    sizes = {"int4_sym": compressed("pack-quantized", GROUP | {"group_size": 32}),
             "gptq_v1": CONFIGS["gptq_v1"] | {"group_size": 128}}  # fmt: skip
    for kind, config in sizes.items():
        message = rf"{NAMES[0]}, which .* each group of (32|128) of its 48 rows and 64 columns"
        with pytest.raises(ValueError, match=message):
            load(write(plain, kind, config))
    with pytest.raises(ValueError, match=r"got I32 for .*weight_zero_point"):
        load(write(plain, "int4_asym", CONFIGS["int4_sym"]))
    parts = parts_of("gptq_v1")
    with pytest.raises(ValueError, match=r"tensors of x, .* by GPTQ, must fit together"):
        format_of("gptq_v1").read("x", parts | {"g_idx": parts["g_idx"] + 4})


def test_eight_bits_are_read_by_the_same_rule() -> None:
    numbers = torch.randint(0, 256, (16, 4))
    shifts = 8 * torch.arange(4)[:, None]
    packed = (numbers.view(4, 4, 4) << shifts).sum(1).int()
    scales, zeros = torch.rand(2, 4).half(), torch.tensor([[0x7F7F7F7F]] * 2, dtype=torch.int32)
    groups = (torch.arange(16) % 2).int()
    config = {"quant_method": "gptq", "bits": 8, "group_size": 8, "desc_act": True}
    found = stored_format({"quantization_config": config}, file="config.json")
    got = found.read("x", {"qweight": packed, "scales": scales, "qzeros": zeros, "g_idx": groups})
    assert torch.equal(got, ((numbers - 128) * scales.float()[groups.long()]).T)


def test_a_model_that_transformers_computes_is_refused(tmp_path: Path) -> None:
    write_gemma(tmp_path)
    edit_config(tmp_path, quantization_config=CONFIGS["nvfp4_modelopt"])
    with pytest.raises(ValueError, match="must be stored as they were trained, got ModelOpt NVFP4"):
        load_without_tokenizer(tmp_path)
