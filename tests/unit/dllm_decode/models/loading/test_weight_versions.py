"""All weights of a model are replaced, or none; versions tell weights apart."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import MODELS, load_tiny, new_tiny
from torch import Tensor

from dllm_decode import (
    DecodeConfig,
    PrefixCache,
    RequestQueue,
    decode,
    new_decoder,
    replace_weights,
    run,
    save_model,
)
from dllm_decode.models import MaskedTransformer
from dllm_decode.models.loading.weight_versions import version_of
from samplers import ConfidenceThreshold

PROMPTS = [[17, 40, 41, 300, 5, 77], [99]]
SAMPLER = ConfidenceThreshold(0.3)


def answers(model: MaskedTransformer) -> Tensor:
    return decode(model, PROMPTS, SAMPLER, gen_length=12, block_length=4).tokens


def changed(model: MaskedTransformer) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        name: (part.double() * (1 + torch.rand(part.shape, generator=generator))).to(part.dtype)
        for name, part in model.state_dict().items()
    }


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_a_model_decodes_with_its_new_weights(dtype: str) -> None:
    """In bfloat16 the old weights were packed by the first decode."""
    model = load_tiny("sdar", dtype=dtype, block_length=4)
    before, weights, fingerprint = answers(model), changed(model), model.fingerprint
    replace_weights(model, weights)
    loaded = load_tiny("sdar", dtype=dtype, block_length=4)
    loaded.load_state_dict(weights)
    assert torch.equal(answers(model), answers(loaded))
    assert not torch.equal(answers(model), before)
    assert model.fingerprint != fingerprint
    assert version_of(model) == version_of(loaded)


def test_weights_come_from_a_folder_too() -> None:
    model = load_tiny("llada", dtype="float32")
    original, fingerprint = version_of(model), model.fingerprint
    replace_weights(model, changed(model))
    assert version_of(model) != original
    replace_weights(model, MODELS / "llada")
    assert version_of(model) == original
    assert model.fingerprint == fingerprint


def test_a_model_with_weights_of_a_state_dict_is_saved(tmp_path: Path) -> None:
    """It had forgotten the folder of its configuration, which was an IndexError."""
    model = load_tiny("sdar")
    replace_weights(model, changed(model))
    save_model(model, tmp_path)
    assert model.files
    assert not any(file.suffix == ".safetensors" for file in model.files)
    version = version_of(model)
    replace_weights(model, MODELS / "sdar")
    assert version_of(model) != version
    replace_weights(model, tmp_path)
    assert version_of(model) == version


NORM = "transformer.norm.weight"


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        (NORM, torch.ones(3), r"of the shape \(16,\), got torch.float32 \(3,\)"),
        (NORM, torch.ones(16, dtype=torch.long), r"got torch.int64 \(16,\)"),
        (NORM, "ones", "got 'ones'"),
        (NORM, torch.full((16,), torch.nan), "must be finite in torch.float32, got NaN"),
        (NORM, torch.full((16,), 1e300, dtype=torch.float64), "must be finite in torch.float32"),
        ("norm.weight", torch.ones(16), "the unknown .'norm.weight'."),
        (NORM, None, "got none of .'transformer.norm.weight'."),
    ],
)
def test_wrong_weights_change_nothing(name: str, value: Any, reason: str) -> None:
    """`load_state_dict` changed 32 of 33 tensors before it raised."""
    model = new_tiny(hidden_size=16)
    weights: dict[str, Any] = {**changed(model), name: value}
    if value is None:
        del weights[name]
    before = version_of(model)
    with pytest.raises(ValueError, match=reason):
        replace_weights(model, weights)
    assert version_of(model) == before


@pytest.mark.usefixtures("no_checks_of_types")
def test_models_that_cannot_follow_are_refused_by_name(tmp_path: Path) -> None:
    model = new_tiny()
    with pytest.raises(
        ValueError, match=r"a state dict .* or a folder that load_model reads, got 3"
    ):
        replace_weights(model, 3)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        replace_weights(model, tmp_path)


def test_a_request_that_begins_after_the_change_has_the_answer_of_the_new_weights() -> None:
    """Weights change between two rounds of one run, whose cache has held an earlier request."""
    model = load_tiny("sdar", dtype="float64", block_length=4)
    weights = changed(model)
    config = DecodeConfig(gen_length=12, block_length=4)
    decoder = new_decoder(model, SAMPLER, cache=PrefixCache(), config=config)
    queue = RequestQueue([decoder.request(PROMPTS[0], 0)])
    tokens = {}
    for answer in run(decoder, queue, 1):
        tokens[answer.index] = answer.output.tokens
        if answer.index == 0:
            replace_weights(model, weights)
            queue.put(decoder.request(PROMPTS[0], 1))
    loaded = load_tiny("sdar", dtype="float64", block_length=4)
    loaded.load_state_dict(weights)
    assert torch.equal(tokens[1], decode(loaded, PROMPTS[:1], SAMPLER, config=config).tokens)
    assert not torch.equal(tokens[0], tokens[1])


def test_the_version_of_weights_changes_with_any_of_them() -> None:
    model = new_tiny()
    before = version_of(model)
    assert version_of(deepcopy(model)) == before
    with torch.no_grad():
        model.get_parameter("transformer.layers.1.attention.output.weight")[3, 4] += 1e-3
    assert version_of(model) != before


def test_packing_weights_is_no_new_version() -> None:
    model = new_tiny().bfloat16()
    before = version_of(model)
    model.transformer.pack()
    assert version_of(model) == before


@pytest.mark.slow
# The warnings are Inductor's own.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.untyped
def test_compiled_forwards_take_the_new_weights() -> None:
    model = load_tiny("sdar", dtype="float32", block_length=4, compile=True)
    before, weights = answers(model), changed(model)
    replace_weights(model, weights)
    compiled = answers(model)
    model.compiled = False
    assert torch.equal(compiled, answers(model))
    assert not torch.equal(compiled, before)
