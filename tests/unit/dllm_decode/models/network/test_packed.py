"""Packed weights give the same bits, and are never lost."""

import copy
from collections.abc import Callable

import pytest
import torch
from tiny_models import load_tiny
from torch import Tensor

from dllm_decode import DualCache, NoCache, decode
from dllm_decode.models import MaskedTransformer
from dllm_decode.models.network.packed import can_pack
from samplers import ConfidenceThreshold

pytestmark = pytest.mark.skipif(
    not can_pack(torch.zeros(1, 1, dtype=torch.bfloat16)), reason="this CPU has no bfloat16"
)
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8]]


@pytest.fixture(params=["llada", "llada2_moe"])
def model(request: pytest.FixtureRequest) -> MaskedTransformer:
    return load_tiny(request.param, dtype=torch.bfloat16)


def logits_of(model: MaskedTransformer) -> Tensor:
    """Decodes, which packs, and returns logits without gradients."""
    decode(model, PROMPTS, ConfidenceThreshold(), gen_length=8, block_length=8)
    assert is_packed(model)
    with torch.no_grad():
        return plain_logits(model)


def plain_logits(model: MaskedTransformer) -> Tensor:
    tokens = torch.tensor([[1, 2, 3, 4]])
    return model.transformer.head(model.transformer(tokens))


def is_packed(model: MaskedTransformer) -> bool:
    return all(part.is_packed for part in model.transformer._packables)


@pytest.mark.parametrize("cache", [NoCache(), DualCache()], ids=repr)
def test_answers_are_those_of_unpacked_weights(
    model: MaskedTransformer, cache: NoCache | DualCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers() -> Tensor:
        return decode(
            model, PROMPTS, ConfidenceThreshold(), cache=cache, gen_length=16, block_length=8
        ).tokens

    packed = answers()
    assert is_packed(model)
    model.transformer.unpack()
    monkeypatch.setattr(model.transformer, "pack", lambda: None)
    assert torch.equal(packed, answers())
    assert not is_packed(model)


def test_a_packed_parameter_is_the_same_object_and_nobody_can_read_it(
    model: MaskedTransformer,
) -> None:
    weight = model.transformer.layers[0].attention.qkv.weight
    before, shape = weight.data.clone(), weight.shape
    packed = logits_of(model)
    assert model.transformer.layers[0].attention.qkv.weight is weight
    assert weight.shape == shape
    assert weight.isnan().all()
    model.transformer.unpack()
    assert torch.equal(weight.data, before)
    with torch.no_grad():
        assert torch.equal(plain_logits(model), packed)


def test_training_after_a_forward_trains_the_weights(model: MaskedTransformer) -> None:
    model.requires_grad_(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = logits_of(model)
    loss = plain_logits(model).float().square().mean()
    assert not is_packed(model)
    loss.backward()
    optimizer.step()
    after = logits_of(model)
    assert after.isfinite().all()
    assert not torch.equal(before, after)


@pytest.mark.parametrize(
    "read",
    [
        lambda model: model.state_dict(),
        lambda model: model.transformer.parts(),
        lambda model: dict(copy.deepcopy(model).named_parameters()),
        lambda model: dict(model.to(torch.float32).named_parameters()),
    ],
    ids=["state_dict", "parts", "deepcopy", "to"],
)
def test_whoever_reads_the_weights_gets_them(
    model: MaskedTransformer, read: Callable[[MaskedTransformer], dict[str, Tensor]]
) -> None:
    model.transformer.unpack()
    expected = {name: value.clone() for name, value in read(model).items()}
    model.to(torch.bfloat16)
    logits_of(model)
    state = read(model)
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], value) for name, value in expected.items())
    with torch.no_grad():
        assert plain_logits(model).isfinite().all()


def test_weights_can_be_loaded_into_a_packed_model(model: MaskedTransformer) -> None:
    state = {name: 2 * value for name, value in model.state_dict().items()}
    logits_of(model)
    model.load_state_dict(state)
    weight = model.transformer.layers[0].attention.qkv.weight
    assert torch.equal(weight, state["transformer.layers.0.attention.qkv.weight"])


def test_other_types_are_not_packed() -> None:
    model = load_tiny("llada", dtype=torch.float32)
    decode(model, PROMPTS, ConfidenceThreshold(), gen_length=8, block_length=8)
    assert not is_packed(model)
