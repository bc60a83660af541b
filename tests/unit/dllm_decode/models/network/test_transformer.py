from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_models import FAMILIES, REGISTERED, load_tiny, new_tiny
from torch import Tensor
from torch.nn import functional as F
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from dllm_decode import ForwardInputs
from dllm_decode.models import MaskedTransformer
from dllm_decode.models.network.operations import attend

B, L = 3, 20
COLUMNS = torch.arange(L).expand(B, L)
TOKENS = torch.randint(50, (B, L), generator=torch.Generator().manual_seed(2))
FAMILY = pytest.mark.parametrize("family", FAMILIES)


def run(model: MaskedTransformer, **changes: Any) -> Tensor:
    return model.predict(replace(ForwardInputs(TOKENS, COLUMNS, COLUMNS), **changes))


def test_the_dtype_of_the_model_is_that_of_logits_and_memory() -> None:
    model = new_tiny()
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        model.to(dtype)
        attend = torch.ones((B, 1, L)).bool()
        kv_cache = model.new_kv_cache(B, L)
        logits = run(model, attend=attend, kv_cache=kv_cache, slots=COLUMNS)
        assert logits.dtype == model.dtype == kv_cache.keys.dtype == dtype
        assert logits.isfinite().all()


@FAMILY
def test_gradients_reach_every_parameter(family: str) -> None:
    model = load_tiny(family, dtype=torch.float64).requires_grad_(True)
    hidden = model.transformer(TOKENS, attend=torch.ones(L, L).tril().bool().expand(B, -1, -1))
    model.transformer.head(hidden[TOKENS % 3 == 0]).logsumexp(-1).sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())
    # On the meta device, rotary tables in buffers would stay uninitialised, and silently give NaN.
    assert not list(model.buffers())


def test_a_memory_needs_slots_and_slots_a_memory() -> None:
    model = new_tiny()
    for alone in ({"kv_cache": model.new_kv_cache(B, L)}, {"slots": COLUMNS}):
        with pytest.raises(ValueError, match="A KV cache and slots must go together"):
            run(model, **alone)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"rotary_dim": 3}, "rotary_dim must be even and at most head_dim = 8, got 3"),
        ({"rotary_dim": 10}, "rotary_dim must be even and at most head_dim = 8, got 10"),
        ({"head_dim": 7}, "head_dim must be even, since RoPE turns pairs, got 7"),
    ],
)
def test_impossible_shapes_are_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(new_tiny().transformer.config, **change)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ({"mask_id": 50, "eos_ids": (1,)}, r"mask_id must be in \[0, 50\), got 50"),
        ({"mask_id": 0, "eos_ids": ()}, "eos_ids must be one or more ids"),
        ({"mask_id": 0, "eos_ids": (1, -1)}, "eos_ids must be one or more ids"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(ids: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MaskedTransformer(new_tiny().transformer, name="wrong", **ids)


POSITIONS = torch.tensor([[0, 1, 5, 31, 32, 100, 1000, 4095, 8000, 20000]])
YARN = {
    "rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 1024,
    "rope_theta": 1e6,
}  # fmt: skip
ROPES: dict[str, dict[str, object]] = {
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 2048, "rope_theta": 5e5,
    },
    "yarn": YARN,
    "yarn, unscaled": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
    "yarn, shortened": YARN | {"factor": 0.25, "original_max_position_embeddings": 16384},
    "yarn, other bounds": YARN | {"beta_fast": 8.0, "beta_slow": 2.0, "truncate": False},
    "yarn, given": YARN | {"attention_factor": 1.3},
    "plain": {"rope_type": "default", "rope_theta": 1e4},
}  # fmt: skip


SIZES = {
    "vocab_size": 96, "hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 8,
}  # fmt: skip
READ = {**SIZES, "rms_norm_eps": 1e-5, "eos_token_id": 1}


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
def test_scaled_rotations_are_those_of_transformers(rope: dict[str, object]) -> None:
    theirs = LlamaRotaryEmbedding(LlamaConfig(**SIZES, rope_parameters=dict(rope)))
    cos, sin = theirs(torch.zeros(1), POSITIONS)
    facts = REGISTERED["a2d_llama"].read({**READ, "rope_parameters": rope}, mask_id=2)
    turn = facts.shape.rope
    ours = turn.rotation(POSITIONS, torch.float32, turn.frequencies(POSITIONS.device))
    assert torch.allclose(ours.cos[:, 0], cos, atol=2e-3)
    half = cos.shape[-1] // 2
    assert torch.allclose(ours.sin[:, 0, :, half:], sin[..., half:], atol=2e-3)
    assert torch.equal(ours.sin[..., :half], -ours.sin[..., half:])


def test_the_older_way_to_write_a_scaled_rotation_is_read_alike() -> None:
    rope, family = dict(ROPES["llama3"]), REGISTERED["a2d_llama"]
    new = family.read({**READ, "rope_parameters": dict(rope)}, mask_id=2)
    theta = rope.pop("rope_theta")
    assert family.read({**READ, "rope_theta": theta, "rope_scaling": rope}, mask_id=2) == new
    assert new.shape.rope_scaling is not None


@pytest.mark.parametrize("num_kv_heads", [4, 2])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_with_gradients_is_that_without(num_kv_heads: int, masked: bool) -> None:
    """In training a CPU computes attention in another way; a row may see nothing."""
    generator = torch.Generator().manual_seed(0)
    sizes = [(2, num_heads, 7, 8) for num_heads in (4, num_kv_heads, num_kv_heads)]
    tensors = [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]
    bias = torch.zeros(2, 1, 1, 7, dtype=torch.float64)
    bias[0, ..., 3:] = -torch.inf
    bias[1] = -torch.inf
    mask = bias if masked else None
    heads = [each.clone().requires_grad_() for each in tensors]
    output = attend(*heads, mask)
    expected = attend(*tensors, mask)
    sees = slice(0, 1) if masked else slice(None)
    torch.testing.assert_close(output[sees], expected[sees])
    assert output.isfinite().all()
    output[sees].square().sum().backward()
    copies = [each.clone().requires_grad_() for each in tensors]
    repeated = [each.repeat_interleave(4 // each.shape[1], 1) for each in copies]
    reference = F.scaled_dot_product_attention(*repeated, attn_mask=mask)
    reference[sees].square().sum().backward()
    for ours, theirs in zip(heads, copies, strict=True):
        assert theirs.grad is not None
        torch.testing.assert_close(ours.grad, theirs.grad.nan_to_num())
