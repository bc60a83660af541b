"""Attention kernels: torch's backends, and over split keys, at the shapes of block steps."""

import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.floor import measure_machine
from benchmarks.frame import Row, least_seconds, wait_for
from benchmarks.setting import Setting
from dllm_decode.models.masked_transformer import attention_on
from dllm_decode.models.network import operations_torch
from dllm_decode.models.network.fused import least_ms, load_kernels
from dllm_decode.models.network.operations import Heads

BACKENDS = (
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
)
Parts = tuple[Heads, Float[Tensor, "B 1 _ K"] | None]


class Shape(NamedTuple):
    """The attention of one forward, whose heads are those of a model.

    Attributes:
        queries: Columns that are computed.
        keys: Columns that are attended to.
        mask: "none", "row": one for all queries, or "query".
        width: Of a head.
    """

    model: str
    heads: int
    kv_heads: int
    rows: int
    queries: int
    keys: int
    mask: str
    width: int = 128


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
# A block step, a batch of them, two whole canvases, and a block step with a long prompt.
_LAYOUTS = ((1, 32, 448, "query"), (8, 32, 448, "query"), (1, 448, 448, "none"),
            (8, 448, 448, "query"), (1, 32, 4160, "query"))  # fmt: skip


def backends(setting: Setting) -> list[Row]:
    """Times torch's backends: first call, with what a backend plans for the shape, later calls."""
    sizes = setting.sizes
    heads, width = sizes.num_heads, sizes.hidden_size // sizes.num_heads
    rows: list[Row] = []
    for layout in _LAYOUTS:
        parts = _parts(Shape("", heads, heads, *layout, width=width), setting)
        exact = _exact(parts)
        named = dict(zip(("rows", "queries", "keys", "mask"), layout, strict=True))
        rows += [{"what": one.name, **named, **_attend(one, parts, exact)} for one in BACKENDS]
    return rows


def _attend(backend: SDPBackend, parts: Parts, exact: Tensor) -> Row:
    (heads, bias), device = parts, exact.device
    found: Row = {}

    def run() -> Tensor:
        with sdpa_kernel([backend]):
            return F.scaled_dot_product_attention(*heads, attn_mask=bias)

    try:
        # torch says why a backend refuses in warnings, then raises.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            started = time.perf_counter()
            mixed = run()
            wait_for(device)
            found["first, ms"] = 1000 * (time.perf_counter() - started)
            found["later, us"] = 1e6 * least_seconds(run, device)
        found["error"] = _error(mixed.transpose(1, 2).flatten(-2), exact)
    except RuntimeError as error:
        found["refused"] = str(error).splitlines()[0]
    return found


def split(setting: Setting) -> list[Row]:
    """Times attention over split keys, torch's, and reading keys and values."""
    device = torch.device(setting.device)
    bytes_per_s = measure_machine(setting).bytes_per_s
    rows = []
    for shape in _FEW if setting.geometry == "tiny" else SHAPES:
        parts = _parts(shape, setting)
        heads, exact = parts[0], _exact(parts)
        row: Row = shape._asdict()
        row["read, us"] = 1e6 * (heads.key.nbytes + heads.value.nbytes) / bytes_per_s
        with torch.inference_mode(), attention_on(device):
            run = partial(operations_torch.attend, *parts)
            row |= {"torch, us": _microseconds(run, device), "torch's error": _error(run(), exact)}
            rows.append(row | _split(parts, exact, row["torch, us"]))
    return rows


def _split(parts: Parts, exact: Float[Tensor, "B Q C"], other_us: float) -> Row:
    device = exact.device
    if device.type != "cuda":
        return {"refused": "needs CUDA"}
    kernels, errors = load_kernels()
    run = partial(kernels.attend, *parts)
    try:
        found = run()
    except errors as error:
        return {"refused": (str(error).splitlines() or [type(error).__name__])[0]}
    taken = _microseconds(run, device)
    return {"split, us": taken, "error": _error(found, exact), "split is faster": taken < other_us}


def _microseconds(run: Callable[[], Tensor], device: torch.device) -> float:
    if device.type != "cuda":
        return 1e6 * least_seconds(run, device)
    return 1000 * least_ms(run, device)


def _exact(parts: Parts) -> Float[Tensor, "B Q C"]:
    heads, bias = parts
    wide = None if bias is None else bias.float()
    return operations_torch.attend(Heads(*(part.float() for part in heads)), wide)


def _error(found: Float[Tensor, "B Q C"], exact: Float[Tensor, "B Q C"]) -> float:
    return float((found.float() - exact).abs().max())


def _parts(shape: Shape, setting: Setting) -> Parts:
    device, dtype = torch.device(setting.device), setting.torch_dtype
    _, num_heads, num_kv_heads, B, Q, K, mask, width = shape
    query = torch.randn(B, Q, num_heads, width, device=device).to(dtype)
    key, value = torch.randn(2, B, num_kv_heads, K, width, device=device).to(dtype)
    heads = Heads(query.transpose(1, 2), key, value)
    if mask == "none":
        return heads, None
    num_masks = 1 if mask == "row" else num_heads // num_kv_heads * Q
    bias = torch.zeros(B, 1, num_masks, K, device=device, dtype=dtype)
    bias[..., K - K // 8 :] = torch.finfo(dtype).min / 2
    return heads, bias
