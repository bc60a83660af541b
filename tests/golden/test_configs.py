"""Each key of a config.json moved, nulled, removed: the official logits, or an error names it."""

import json
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import EVERY_FAMILY, MODELS, OPTIONS, config_of, load_without_tokenizer
from torch import Tensor

from dllm_decode import ForwardInputs

ROPE = ("rope_theta", "partial_rotary_factor", "rope_scaling")
# Each is the form of some version of transformers, so that none may be refused.
MOVES = ("nested", "nested beside null", "nested with rope_scaling", "flat", "null object")


def logits(family: str, folder: Path) -> Tensor:
    options = {"device": "cpu", "dtype": "float32"} | OPTIONS.get(family, {})
    model, _ = load_without_tokenizer(folder, **options)
    tokens = torch.arange(5, 37)[None] * 7 % 490
    columns = torch.arange(32)[None]
    return model.predict(ForwardInputs(tokens=tokens, positions=columns, wanted=columns))


@cache
def official(family: str) -> Tensor:
    return logits(family, MODELS / family)


def written(family: str, config: dict[str, Any], folder: Path) -> Path:
    shutil.copy(MODELS / family / "model.safetensors", folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text('{"eos_token_id": 500}')
    return folder


def moved(config: dict[str, Any], how: str) -> dict[str, Any]:
    """Moves the keys of rotation to the place of another form."""
    scaling = config.get("rope_scaling") or {}
    stated = {key: config[key] for key in ROPE[:2] if key in config}
    rope = {"rope_type": "default"} | stated | scaling | config.get("rope_parameters", {})
    rest = {key: config[key] for key in config if key not in (*ROPE, "rope_parameters")}
    forms: dict[str, dict[str, Any]] = {
        "nested": {"rope_parameters": rope},
        "nested beside null": dict.fromkeys(ROPE) | {"rope_parameters": rope},
        "nested with rope_scaling": {"rope_parameters": rope, "rope_scaling": rope},
        "flat": {"rope_scaling": rope} | {key: rope[key] for key in ROPE[:2] if key in rope},
        "null object": {"rope_parameters": None, "rope_scaling": rope},
    }
    return rest | forms[how]


@pytest.mark.parametrize("how", MOVES)
@pytest.mark.parametrize("family", EVERY_FAMILY)
def test_rotation_is_read_wherever_it_stands(family: str, how: str, tmp_path: Path) -> None:
    """A base in rope_parameters was 10000 in LLaDA, and LLaDA 2 turned whole heads."""
    config = moved(config_of(family), how)
    if family == "llada":
        # The authors' code of LLaDA never reads rope_scaling.
        config.pop("rope_scaling", None)
        if how in ("flat", "null object"):
            config["rope_theta"] = config_of(family)["rope_theta"]
    assert torch.equal(logits(family, written(family, config, tmp_path)), official(family))


def read_or_refused(family: str, folder: Path) -> tuple[Tensor | None, str]:
    try:
        return logits(family, folder), ""
    except ValueError as error:
        return None, str(error)


def damages() -> Iterator[Any]:
    for family in EVERY_FAMILY:
        for key in config_of(family):
            for how in ("null", "removed"):
                yield pytest.param(family, key, how, id=f"{family}-{key}-{how}")


@pytest.mark.parametrize(("family", "key", "how"), list(damages()))
def test_a_key_that_is_null_or_gone_is_named_or_decides_nothing(
    family: str, key: str, how: str, tmp_path: Path
) -> None:
    """The number added in norms fell back to a default that was not the checkpoint's."""
    config = config_of(family)
    if how == "null":
        config[key] = None
    else:
        del config[key]
    if key == "bd_size":
        # The family's block is longer than this text.
        config["bd_size"] = 8
    got, message = read_or_refused(family, written(family, config, tmp_path))
    if got is None:
        # A wrong size is noticed by the tensors that do not fit it.
        assert key in message or "tensors that config.json calls for" in message
    else:
        assert torch.equal(got, official(family))


@pytest.mark.parametrize("family", EVERY_FAMILY)
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rope_type": "linear", "factor": 2.0}, "'linear'"),
        ({"rope_theta": 3e4}, "rope_theta"),
        ({"partial_rotary_factor": 0.25}, "partial_rotary_factor"),
        ({"full_attention": {"rope_theta": 1e4}}, "full_attention"),
        ({"short_factor": [1.0]}, "short_factor"),
    ],
)
def test_rotation_that_is_not_implemented_or_disagrees_is_named(
    family: str, changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    config = config_of(family)
    config |= {"rope_parameters": config.get("rope_parameters", {}) | changes}
    if "rope_theta" in changes:
        config.setdefault("rope_theta", 1e6)
    with pytest.raises(ValueError, match=named):
        logits(family, written(family, config, tmp_path))
