import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny_models import load_without_tokenizer as load_model
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    LlamaConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from dllm_decode.models import (
    ForwardInputs,
    KVCache,
    MaskedTransformer,
    Transformer,
    new_llada,
)
from dllm_decode.models.families import FAMILIES
from dllm_decode.models.network import operations_torch as plain
from dllm_decode.models.network.context import operations_for
from dllm_decode.models.network.operations import Heads, Projected

B, L, V = 3, 20, 96
COLUMNS = torch.arange(L).expand(B, L)


def make_varied(module: nn.Module) -> None:
    """Default weights answer one token everywhere, and hide what a wrong rotation would do."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            centre = 1.0 if "norm" in name else 0.0
            width = 0.2 if parameter.ndim == 1 else 1.5 * parameter.shape[1] ** -0.5
            parameter.copy_(centre + width * torch.randn(parameter.shape, generator=generator))


@pytest.fixture(scope="module", params=[4, 2, 1], ids=lambda heads: f"{heads} kv heads")
def model(request) -> MaskedTransformer:
    model = new_llada(
        vocab_size=V, hidden_size=32, num_layers=3, num_heads=4, num_kv_heads=request.param,
        mlp_hidden_size=48, mask_id=V - 1, eos_ids=(V - 2,),
    )  # fmt: skip
    make_varied(model)
    return model.double()


@pytest.fixture(scope="module")
def tokens() -> Tensor:
    return torch.randint(V, (B, L), generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def attend() -> Tensor:
    attend = torch.rand((B, L, L), generator=torch.Generator().manual_seed(3)) < 0.6
    return attend | torch.eye(L, dtype=torch.bool)


def run(model: MaskedTransformer, tokens: Tensor, **changes: object) -> Tensor:
    inputs = ForwardInputs(
        tokens=tokens, positions=COLUMNS[: len(tokens)], wanted=COLUMNS[: len(tokens)]
    )
    return model.predict(dataclasses.replace(inputs, **changes))


def test_the_toy_model_is_varied(model, tokens) -> None:
    logits = run(model, tokens)
    assert logits.shape == (B, L, V)
    assert len(logits.argmax(-1).unique()) > 10
    assert logits.softmax(-1).amax(-1).median() > 0.1


@pytest.mark.parametrize("masked", [None, "each", "shared"])
def test_wanted_columns_are_those_of_the_whole(model, tokens, attend, masked) -> None:
    mask = {None: None, "each": attend, "shared": attend[:, :1]}[masked]
    wanted = torch.tensor([[3, 4, 19], [0, 7, 7], [19, 1, 0]])
    some = run(model, tokens, attend=mask, wanted=wanted)
    everything = run(model, tokens, attend=mask)
    assert torch.allclose(some, everything[torch.arange(B)[:, None], wanted])


def test_a_mask_of_ones_is_no_mask(model, tokens) -> None:
    plain = run(model, tokens)
    for shape in ((B, 1, L), (B, L, L)):
        assert torch.allclose(run(model, tokens, attend=torch.ones(shape).bool()), plain)


def test_columns_that_are_not_attended_do_not_matter(model, tokens) -> None:
    attend = (torch.arange(L) >= 5).expand(B, 1, L)
    changed = torch.where(torch.arange(L) < 5, (tokens + 1) % V, tokens)
    one, other = run(model, tokens, attend=attend), run(model, changed, attend=attend)
    assert torch.equal(one[:, 5:], other[:, 5:])
    assert not torch.allclose(run(model, tokens)[:, 5:], run(model, changed)[:, 5:])


def test_only_relative_positions_matter(model, tokens) -> None:
    assert torch.allclose(
        run(model, tokens, positions=COLUMNS + 1000), run(model, tokens), atol=1e-3
    )
    assert not torch.allclose(run(model, tokens, positions=2 * COLUMNS), run(model, tokens), atol=1)


def test_the_dtype_of_the_model_is_that_of_logits_and_memory(tokens) -> None:
    sizes = {"vocab_size": V, "hidden_size": 16, "num_layers": 1, "num_heads": 2}
    model = new_llada(**sizes, mlp_hidden_size=16, mask_id=0, eos_ids=(1,))
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        model.to(dtype)
        attend = torch.ones((B, 1, L)).bool()
        kv_cache = model.new_kv_cache(B, L)
        logits = run(model, tokens, attend=attend, kv_cache=kv_cache, slots=COLUMNS)
        assert logits.dtype == model.dtype == kv_cache.keys.dtype == dtype
        assert logits.isfinite().all()


def test_predicted_logits_may_be_changed_in_place(model, tokens) -> None:
    """A tensor made in inference mode refuses that outside of it."""
    logits = run(model, tokens)
    logits[:, :, model.mask_id] = -torch.inf
    assert not logits.requires_grad


def test_gradients_reach_every_parameter(model, tokens, attend) -> None:
    model.zero_grad()
    hidden = model.transformer(tokens, attend=attend)
    model.transformer.head(hidden[tokens % 3 == 0]).logsumexp(-1).sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())
    model.zero_grad()


def test_training_works_after_decoding(model, tokens) -> None:
    """The rotary frequencies, made while decoding, are no inference tensors."""
    run(model, tokens)
    model.transformer.head(model.transformer(tokens)).sum().backward()
    model.zero_grad()


def test_a_model_has_no_buffers(model) -> None:
    """Built on the meta device, rotary tables in buffers stay uninitialised: NaN, silently."""
    assert not list(model.buffers())


# Memory


def scattered_slots() -> Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.stack([torch.randperm(L, generator=generator) for _ in range(B)])


@pytest.mark.parametrize("slots", [COLUMNS, scattered_slots()], ids=["in order", "scattered"])
def test_a_forward_through_a_memory_is_a_plain_forward(model, tokens, slots) -> None:
    kv_cache = model.new_kv_cache(B, L)
    assert torch.allclose(run(model, tokens, kv_cache=kv_cache, slots=slots), run(model, tokens))
    assert kv_cache.keys.abs().amin((-1, -3)).min() > 0


def test_unwritten_slots_are_hidden_by_the_mask(model, tokens) -> None:
    kv_cache = model.new_kv_cache(B, L + 7)
    attend = (torch.arange(L + 7) >= 7).expand(B, 1, L + 7)
    got = run(model, tokens, kv_cache=kv_cache, slots=COLUMNS + 7, attend=attend)
    assert torch.allclose(got, run(model, tokens))
    assert not kv_cache.keys[..., :7, :].any()


def block_forward(
    model: MaskedTransformer,
    tokens: Tensor,
    columns: Tensor,
    kv_cache: KVCache,
    rows: slice | Tensor | None = None,
) -> Tensor:
    wanted = torch.arange(tokens.shape[1]).expand_as(tokens)
    return model.predict(
        ForwardInputs(tokens, columns, wanted, kv_cache=kv_cache, slots=columns, rows=rows)
    )


COLUMN_SETS = {
    "one run": torch.arange(8, 12).expand(B, 4),
    "a run a row": torch.tensor([[8, 9, 10, 11], [0, 1, 2, 3], [16, 17, 18, 19]]),
    "gaps": torch.tensor([[1, 5, 6, 19]] * B),
    "repeated": torch.tensor([[2, 3, 3, 3], [4, 5, 6, 7], [9, 9, 9, 9]]),
}


@pytest.mark.parametrize("columns", COLUMN_SETS.values(), ids=COLUMN_SETS)
@pytest.mark.parametrize("rows", [[0, 1, 2], [1, 2], [2, 0], [1]], ids=str)
def test_columns_and_rows_may_be_any_subset(model, tokens, columns, rows) -> None:
    """Each row alone, in a memory of its own, is the oracle."""
    kv_cache = model.new_kv_cache(B, L)
    run(model, tokens, kv_cache=kv_cache, slots=COLUMNS)
    untouched = kv_cache.keys.clone()
    index = torch.tensor(rows)
    columns = columns[index]
    fresh = (tokens[index].gather(1, columns) + columns) % V
    got = block_forward(model, fresh, columns, kv_cache, index)
    for i, row in enumerate(rows):
        alone = model.new_kv_cache(1, L)
        one = slice(row, row + 1)
        run(model, tokens[one], kv_cache=alone, slots=COLUMNS[:1])
        expected = block_forward(model, fresh[i : i + 1], columns[i : i + 1], alone)
        assert torch.allclose(got[i], expected[0])
        assert torch.allclose(kv_cache.keys[:, row], alone.keys[:, 0])
        assert torch.allclose(kv_cache.values[:, row], alone.values[:, 0])
    others = [row for row in range(B) if row not in rows]
    assert torch.equal(kv_cache.keys[:, others], untouched[:, others])


@pytest.mark.parametrize("rows", [slice(None), slice(0, 2), slice(1, 3)], ids=str)
def test_slices_are_the_indices_they_stand_for(model, tokens, rows) -> None:
    """All four pairs of a slice and a tensor; the tensors are checked above."""
    index = torch.arange(B)[rows]
    columns = torch.arange(8, 12).expand(len(index), 4)
    wanted = torch.arange(4).expand_as(columns)
    fresh = (tokens[index, 8:12] + 1) % V
    results = []
    for some_rows in (rows, index):
        for slots in (slice(8, 12), columns):
            kv_cache = model.new_kv_cache(B, L)
            run(model, tokens, kv_cache=kv_cache, slots=slice(0, L))
            logits = model.predict(
                ForwardInputs(
                    fresh, columns, wanted, kv_cache=kv_cache, slots=slots, rows=some_rows
                )
            )
            results.append((logits, kv_cache.keys, kv_cache.values))
    for result in results:
        for got, expected in zip(result, results[-1], strict=True):
            assert torch.equal(got, expected)


@pytest.mark.parametrize("slots", [slice(0, L), COLUMNS], ids=["slice", "tensor"])
def test_the_first_slots_are_a_memory_that_writes_through(model, tokens, slots) -> None:
    kv_cache = model.new_kv_cache(B, L + 5)
    got = run(model, tokens, kv_cache=kv_cache.first(L), slots=slots)
    assert torch.allclose(got, run(model, tokens))
    assert kv_cache.keys[..., :L, :].any()
    assert not kv_cache.keys[..., L:, :].any()
    assert kv_cache.first(L + 5) is kv_cache


def test_a_memory_needs_slots_and_slots_a_memory(model, tokens) -> None:
    with pytest.raises(ValueError, match="A KV cache and slots must go together"):
        run(model, tokens, kv_cache=model.new_kv_cache(B, L))
    with pytest.raises(ValueError, match="A KV cache and slots must go together"):
        run(model, tokens, slots=COLUMNS)


# Wrong shapes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"num_kv_heads": 3}, "num_kv_heads must divide num_heads, got 3 and 4"),
        ({"rotary_dim": 3}, "rotary_dim must be even and at most head_dim = 8, got 3"),
        ({"rotary_dim": 10}, "rotary_dim must be even and at most head_dim = 8, got 10"),
        ({"head_dim": 7}, "head_dim must be even, since RoPE turns pairs, got 7"),
    ],
)
def test_impossible_shapes_are_refused(model, change, message) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(model.transformer.config, **change)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ({"mask_id": V, "eos_ids": (1,)}, f"mask_id must be in \\[0, {V}\\), got {V}"),
        ({"mask_id": 0, "eos_ids": ()}, "eos_ids must be one or more ids"),
        ({"mask_id": 0, "eos_ids": (1, -1)}, "eos_ids must be one or more ids"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(model, ids, message) -> None:
    with pytest.raises(ValueError, match=message):
        MaskedTransformer(model.transformer, name="wrong", **ids)


# The families' architectures, as transformers implements them

SIZES = {
    "vocab_size": V, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 80, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
}  # fmt: skip


def qwen3(folder: Path, *, tied: bool) -> PreTrainedModel:
    """Writes a checkpoint of SDAR, whose head_dim is not hidden_size / num_heads."""
    theirs = Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=32, tie_word_embeddings=tied))
    make_varied(theirs)
    tensors = theirs.state_dict()
    if tied:
        del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors")
    config = SIZES | {
        "architectures": ["SDARForCausalLM"], "head_dim": 32, "tie_word_embeddings": tied,
        "mask_token_id": V - 1, "eos_token_id": V - 2,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return theirs.eval()


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_a_checkpoint_answers_as_in_transformers(tied, tokens, tmp_path) -> None:
    """With and without causality; all families are compared with their authors' code in golden."""
    theirs = qwen3(tmp_path, tied=tied)
    ours, _ = load_model(tmp_path)
    with torch.no_grad():
        expected = theirs(tokens, is_causal=False).logits
        causal = theirs(tokens).logits
    assert (expected - causal).abs().max() > 1
    assert (run(ours, tokens) - expected).abs().max() < 1e-4
    attend = torch.ones((L, L)).bool().tril().expand(B, L, L)
    assert (run(ours, tokens, attend=attend) - causal).abs().max() < 1e-4


# Scaled rotations, as transformers computes them

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


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
def test_scaled_rotations_are_those_of_transformers(rope: dict[str, object]) -> None:
    sizes = {
        "vocab_size": V, "hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 8,
    }  # fmt: skip
    theirs = LlamaRotaryEmbedding(LlamaConfig(**sizes, rope_parameters=dict(rope)))
    cos, sin = theirs(torch.zeros(1), POSITIONS)
    config = {**sizes, "rms_norm_eps": 1e-5, "rope_parameters": rope, "eos_token_id": 1}
    facts = FAMILIES["a2d_llama"].read(config, mask_id=2)
    ours = facts.shape.rope.rotation(POSITIONS, torch.float32)
    assert torch.allclose(ours.cos[:, 0], cos, atol=2e-3)
    half = cos.shape[-1] // 2
    assert torch.allclose(ours.sin[:, 0, :, half:], sin[..., half:], atol=2e-3)
    assert torch.equal(ours.sin[..., :half], -ours.sin[..., half:])


def test_the_older_way_to_write_a_scaled_rotation_is_read_alike() -> None:
    sizes = {
        "vocab_size": V, "hidden_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 8, "eos_token_id": 1,
    }  # fmt: skip
    rope = dict(ROPES["llama3"])
    new = FAMILIES["a2d_llama"].read({**sizes, "rope_parameters": dict(rope)}, mask_id=2)
    theta = rope.pop("rope_theta")
    old = FAMILIES["a2d_llama"].read(
        {**sizes, "rope_theta": theta, "rope_scaling": rope}, mask_id=2
    )
    assert new == old
    assert new.shape.rope_scaling is not None


def test_components_behind_the_rotary_dim_do_not_turn(model) -> None:
    config = dataclasses.replace(model.transformer.config, rotary_dim=4)
    operations = operations_for(torch.device("cpu"), torch.float32)
    heads = torch.randn(1, 3, 6, 8, generator=torch.Generator().manual_seed(0))
    rotation = config.rope.rotation(torch.tensor([[0, 1, 7]]), torch.float32)
    got = operations.rotate_and_store(Projected(heads, 1), rotation, None)
    whole = heads.transpose(1, 2)
    assert torch.equal(got.query[..., 4:], whole[:, :4, :, 4:])
    pairs = torch.complex(whole[:, :4, :, :2].double(), whole[:, :4, :, 2:4].double())
    angles = torch.outer(
        torch.tensor([0.0, 1, 7]), torch.tensor([1.0, config.rope_theta**-0.5])
    ).double()
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    expected = torch.cat((turned.real, turned.imag), -1)
    assert torch.allclose(got.query[..., :4].double(), expected, atol=1e-6)


def test_parts_are_views_of_all_parameters(model) -> None:
    shape = dataclasses.replace(model.transformer.config, qkv_bias=True, qk_norm=True)
    transformer = Transformer(shape)
    for part in transformer.parts().values():
        part.fill_(7.0)
    assert all((parameter == 7).all() for parameter in transformer.parameters())
    num_elements = sum(part.numel() for part in transformer.parts().values())
    assert num_elements == sum(parameter.numel() for parameter in transformer.parameters())


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
    given = bias if masked else None
    heads = Heads(*(each.clone().requires_grad_() for each in tensors))
    found = plain.attend(heads, given)
    expected = plain.attend(Heads(*tensors), given)
    sees = slice(0, 1) if masked else slice(None)
    torch.testing.assert_close(found[sees], expected[sees])
    assert found.isfinite().all()
    found[sees].square().sum().backward()
    again = [each.clone().requires_grad_() for each in tensors]
    repeated = [each.repeat_interleave(4 // each.shape[1], 1) for each in again]
    wanted = F.scaled_dot_product_attention(*repeated, attn_mask=given)
    wanted[sees].square().sum().backward()
    for ours, theirs in zip(heads, again, strict=True):
        assert theirs.grad is not None
        torch.testing.assert_close(ours.grad, theirs.grad.nan_to_num())
