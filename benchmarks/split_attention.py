"""Attention over split keys compared with torch's, at the shapes of block steps."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from benchmarks.floor import least_seconds, measure_machine
from benchmarks.setting import Setting
from dllm_decode.models.masked_transformer import attention_on
from dllm_decode.models.network import operations_torch
from dllm_decode.models.network.fused import least_ms, load_kernels
from dllm_decode.models.network.operations import Heads


class Shape(NamedTuple):
    """The attention of one forward.

    Attributes:
        model: Whose heads these are.
        heads: Heads of queries.
        kv_heads: Heads of keys and values.
        rows: Sequences.
        queries: Columns that are computed.
        keys: Columns that are attended to.
        mask: "none", "row": one for all queries, or "query".
    """

    model: str
    heads: int
    kv_heads: int
    rows: int
    queries: int
    keys: int
    mask: str


_WIDTH = 128
_MODELS = (("LLaDA-8B", 32, 32), ("Dream-7B", 28, 4), ("SDAR-8B", 32, 8))
SHAPES = [
    Shape(*model, rows, 32, keys, mask)
    for model in _MODELS
    for rows in (1, 2, 4)
    for keys in (448, 1088, 4160)
    for mask in ("none", "row")
]
"""Block steps; then masks of block-causal models, and one column."""
SHAPES += [Shape(*model, 1, 32, 1088, "query") for model in _MODELS]
SHAPES += [Shape(*model, 1, 1, 1088, "row") for model in _MODELS]
_FEW = [Shape("small", 4, 2, 2, 8, keys, mask) for keys in (40, 90) for mask in ("row", "query")]


def split_attention(setting: Setting) -> dict[str, Any]:
    """Device time of attention over split keys, of torch's, and of reading keys and values."""
    device = torch.device(setting.device)
    bytes_per_s = measure_machine(setting).bytes_per_s
    shapes = _FEW if setting.geometry == "tiny" else SHAPES
    rows = []
    for shape in shapes:
        heads, bias = _parts(shape, setting, device)
        exact = operations_torch.attend(
            Heads(*(part.float() for part in heads)), None if bias is None else bias.float()
        )
        row: dict[str, Any] = shape._asdict()
        row["read_us"] = 1e6 * (heads.key.nbytes + heads.value.nbytes) / bytes_per_s
        with torch.inference_mode(), attention_on(device):
            run = partial(operations_torch.attend, heads, bias)
            row |= {"torch_us": _microseconds(run, device), "torch's error": _error(run(), exact)}
            rows.append(row | _split(heads, bias, exact, row["torch_us"]))
    return {"rows": rows}


def _split(
    heads: Heads, bias: Float[Tensor, "B 1 _ K"] | None, exact: Float[Tensor, "B Q C"], other: float
) -> dict[str, Any]:
    device = heads.query.device
    if device.type != "cuda":
        return {"refused": "needs CUDA"}
    kernels, errors = load_kernels()
    run = partial(kernels.attend, heads, bias)
    try:
        found = run()
    except errors as error:
        return {"refused": (str(error).splitlines() or [type(error).__name__])[0]}
    taken = _microseconds(run, device)
    return {"split_us": taken, "error": _error(found, exact), "split is faster": taken < other}


def _microseconds(run: Callable[[], Tensor], device: torch.device) -> float:
    if device.type != "cuda":
        return 1e6 * least_seconds(run, device)
    return 1000 * least_ms(run, device)


def _error(found: Float[Tensor, "B Q C"], exact: Float[Tensor, "B Q C"]) -> float:
    return float((found.float() - exact).abs().max())


def _parts(
    shape: Shape, setting: Setting, device: torch.device
) -> tuple[Heads, Float[Tensor, "B 1 _ K"] | None]:
    _, num_heads, num_kv_heads, B, Q, K, mask = shape
    query = torch.randn(B, Q, num_heads, _WIDTH, device=device).to(setting.torch_dtype)
    key, value = torch.randn(2, B, num_kv_heads, K, _WIDTH, device=device).to(setting.torch_dtype)
    heads = Heads(query.transpose(1, 2), key, value)
    if mask == "none":
        return heads, None
    num_masks = 1 if mask == "row" else num_heads // num_kv_heads * Q
    bias = torch.zeros(B, 1, num_masks, K, device=device, dtype=query.dtype)
    bias[..., K - K // 8 :] = torch.finfo(query.dtype).min / 2
    return heads, bias
