"""A mixture of experts against a slow loop over tokens that knows nothing of stacking."""

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dllm_decode.models.network.config import MoEConfig
from dllm_decode.models.network.moe import Experts, MoE
from dllm_decode.models.network.tensor_names import tensors_of

H = 12
CONFIGS = {
    "softmax": MoEConfig(6, 2, 8, normalised=False),
    "normalised": MoEConfig(6, 3, 8),
    "all of them": MoEConfig(4, 4, 8),
    "one": MoEConfig(5, 1, 8, normalised=False),
    "sigmoid": MoEConfig(6, 3, 8, score="sigmoid", has_selection_bias=True, scale=2.5),
    "groups and a shared expert": MoEConfig(
        12, 3, 8, shared_hidden_size=10, score="sigmoid", has_selection_bias=True, num_groups=4,
        num_open_groups=2, scale=1.5, routes_in_float32=True, mixes_in_float32=True,
    ),
    "groups of one": MoEConfig(6, 2, 8, num_groups=6, num_open_groups=3),
    "weights in float32": MoEConfig(6, 3, 8, weighs_in_float32=True),
}  # fmt: skip
CONFIG = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def random(*size: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def make(config: MoEConfig, dtype: torch.dtype = torch.float64, width: int = H) -> MoE:
    layer = MoE(config, width).to(dtype).requires_grad_(False)
    for number, part in enumerate(layer.parameters()):
        part.copy_(random(*part.shape, seed=number, dtype=part.dtype))
    return layer


def swiglu(parts: dict[str, Tensor], prefix: str, x: Tensor) -> Tensor:
    gate, up, down = (parts[f"{prefix}.{name}.weight"] for name in ("gate", "up", "down"))
    return down @ (F.silu(gate @ x) * (up @ x))


def open_experts(config: MoEConfig, preference: list[float]) -> list[int]:
    size = config.num_experts // config.num_groups
    groups = [range(g * size, g * size + size) for g in range(config.num_groups)]
    worth = [sum(sorted((preference[e] for e in group), reverse=True)[:2]) for group in groups]
    best = sorted(range(config.num_groups), key=lambda g: -worth[g])[: config.num_open_groups]
    return [e for g in best for e in groups[g]]


def slowly(layer: MoE, hidden: Tensor) -> Tensor:
    """Computes one token after another, in float64, from the tensors of a checkpoint."""
    config = layer.router.config
    parts = {name: part.double() for name, part in tensors_of(layer).items()}
    out = torch.zeros(hidden.shape, dtype=torch.float64)
    for row, column in torch.cartesian_prod(*map(torch.arange, hidden.shape[:2])).tolist():
        x = hidden[row, column].double()
        logits = parts["router.weight"] @ x
        scores = logits.softmax(0) if config.score == "softmax" else logits.sigmoid()
        bias = parts.get("router.selection_bias", torch.zeros_like(scores))
        preference = (scores + bias).tolist()
        allowed = open_experts(config, preference)
        chosen = sorted(allowed, key=lambda e: -preference[e])[: config.num_active]
        total = float(scores[chosen].sum()) if config.normalised else 1.0
        for e in chosen:
            weight = config.scale * scores[e] / total
            out[row, column] += weight * swiglu(parts, f"experts.{e}", x)
        if config.shared_hidden_size:
            out[row, column] += swiglu(parts, "shared", x)
    return out


@CONFIG
@pytest.mark.parametrize("size", [(3, 7), (1, 40), (0, 5)], ids=str)
def test_a_layer_is_the_slow_loop(config: MoEConfig, size: tuple[int, int]) -> None:
    layer, hidden = make(config), random(*size, H, seed=99)
    assert torch.allclose(layer(hidden), slowly(layer, hidden), atol=1e-10)


@CONFIG
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_in_lower_precision_it_is_the_slow_loop_up_to_rounding(
    config: MoEConfig, dtype: torch.dtype, device: str
) -> None:
    # A grouped product needs rows of a multiple of 16 bytes.
    config = dataclasses.replace(config, hidden_size=16) if device == "cuda" else config
    width = 16 if device == "cuda" else H
    layer, hidden = make(config, dtype, width), random(3, 7, width, seed=99, dtype=dtype)
    expected = slowly(layer, hidden)
    mixed = layer.to(device)(hidden.to(device)).cpu()
    assert mixed.dtype == dtype
    # In bfloat16, two experts that nearly tie may change order; few tokens have such experts.
    error = (mixed.double() - expected).abs().amax(-1)
    exact = 1e-4 if device == "cpu" else 1e-2
    bound = exact if dtype == torch.float32 else 0.05 * float(expected.abs().max())
    assert (error < bound).double().mean() > (0.99 if dtype == torch.float32 else 0.85)


@CONFIG
def test_experts_without_tokens_are_not_computed(
    config: MoEConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, hidden = make(config), random(1, 2, H, seed=5)
    chosen = set(layer.router(hidden[0]).experts.flatten().tolist())
    unused = sorted(set(range(config.num_experts)) - chosen)
    expected = layer(hidden)
    # If these weights are read, the sum is NaN.
    layer.experts.gate_up[unused] = torch.nan
    layer.experts.down[unused] = torch.nan
    assert torch.equal(layer(hidden), expected)
    assert unused or config.num_active * 2 >= config.num_experts
    products = []
    linear = F.linear
    monkeypatch.setattr(F, "linear", lambda *args: products.append(1) or linear(*args))
    layer.experts(hidden[0], layer.router(hidden[0]))
    assert len(products) == 1 + 2 * len(chosen)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


@CONFIG
@pytest.mark.parametrize("size", [(1, 1), (3, 7), (0, 4)], ids=str)
@pytest.mark.usefixtures("two_threads")
def test_grouped_products_are_the_loop(
    config: MoEConfig, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups on one thread, as on CUDA and with gradients, and groups distributed over threads."""
    layer, hidden = make(config, torch.float32), random(*size, H, seed=9, dtype=torch.float32)
    grouped = layer(hidden)
    with torch.no_grad():
        threaded = layer(hidden)
    monkeypatch.setattr(Experts, "_can_group", lambda self, columns: False)
    looped = layer(hidden)
    assert torch.equal(threaded, grouped)
    assert torch.allclose(grouped, looped, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_experts": 0}, "num_experts must be at least 1, got 0"),
        ({"score": "relu"}, "score must be 'softmax' or 'sigmoid', got 'relu'"),
        ({"num_active": 7}, "num_active must be at most 6, the experts that a token can choose"),
    ],
)
def test_impossible_mixtures_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIGS["softmax"], **change)
