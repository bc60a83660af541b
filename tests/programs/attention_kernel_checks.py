"""Attention over split keys against torch's. Run by `test_operations_triton.py`, not alone.

In a process of their own: interpreted on the CPU with TRITON_INTERPRET=1, else compiled on CUDA.
"""

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from dllm_decode.models.network import fused as choice
from dllm_decode.models.network import operations_torch as plain
from dllm_decode.models.network import operations_triton as fused
from dllm_decode.models.network.context import _as_bias
from dllm_decode.models.network.fused import TOLERANCES, CheckedOperations, load_kernels
from dllm_decode.models.network.operations import Heads

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda:0")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The grids of all kernels launched."""
    found: list[tuple[int, ...]] = []
    launch = fused._launch

    def noted(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        found.append(grid)
        launch(kernel, grid, *arguments, **options)

    monkeypatch.setattr(fused, "_launch", noted)
    return found


def heads_of(random: Callable[..., Tensor], sizes: tuple[int, ...], dtype: torch.dtype) -> Heads:
    B, H, G, Q, K, D = sizes
    query = random(B, H, Q, D, dtype=dtype)
    return Heads(query, *(random(B, G, K, D, dtype=dtype) for _ in range(2)))


def ragged(num_rows: int, num_keys: int) -> Tensor:
    """Returns keys that rows see if row after row has a shorter prompt and an earlier end."""
    column = torch.arange(num_keys)
    first = torch.arange(num_rows)[:, None] * (num_keys // (2 * num_rows))
    return ((column >= first) & (column < num_keys - first // 2))[:, None].to(DEVICE)


def check(found: Tensor, heads: Heads, bias: Tensor | None) -> None:
    """Compares with torch in float64, and with what torch makes of the same dtype."""
    wide = Heads(*(part.double() for part in heads))
    exact = plain.attend(wide, None if bias is None else bias.double())
    assert (found.dtype, found.shape) == (heads.query.dtype, exact.shape)
    error, torch_s = ((got.double() - exact).abs() for got in (found, plain.attend(heads, bias)))
    assert error.max() <= TOLERANCES[found.dtype] / 4
    # Not further off than torch, but for the order of sums.
    assert error.mean() <= 1.5 * torch_s.mean() + 1e-7


def mask_of(kind: str, sizes: tuple[int, ...], random: Callable[..., Tensor]) -> Tensor | None:
    B, _, _, Q, K, _ = sizes
    if kind == "none":
        return None
    if kind == "ragged":
        return ragged(B, K)
    seen = random(B, Q, K) > 0.4
    # One query sees nothing of the first keys, and another nothing at all.
    seen[0, 0, : K // 2], seen[-1, -1] = False, False
    return seen


SIZES = [
    # B, H, G, Q, K, D
    (1, 1, 1, 32, 512, 64),
    (2, 2, 1, 1, 1031, 16),
    (2, 4, 2, 5, 130, 48),
    (3, 7, 1, 1, 17, 6),
    (1, 2, 1, 17, 65, 128),
    (2, 1, 1, 32, 1, 96),
    (1, 1, 1, 40, 70, 256),
]
KINDS = ("none", "ragged", "each")


@pytest.mark.exhaustive(7)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_shares_add_up_to_what_torch_computes(
    random: Any, sizes: tuple[int, ...], kind: str, dtype: torch.dtype
) -> None:
    heads = heads_of(random, sizes, dtype)
    attend = mask_of(kind, sizes, random)
    bias = None if attend is None else _as_bias(attend, dtype, sizes[1] // sizes[2])
    before = [part.clone() for part in heads]
    tiling = fused._tiling(heads)
    for num_tiles in (1 + sizes[4] // 1024, 3):
        shares = tiling._replace(keys_per_share=num_tiles * tiling.keys)
        check(fused._attend_by_shares(heads, bias, shares), heads, bias)
    assert all(map(torch.equal, before, heads))


def test_a_row_that_sees_nothing_answers_something_finite(random: Any) -> None:
    for dtype in DTYPES:
        heads = heads_of(random, (2, 2, 1, 3, 150, 16), dtype)
        attend = ragged(2, 150)
        attend[1] = False
        bias = _as_bias(attend, dtype, 2)
        found = fused._attend_by_shares(heads, bias, fused._tiling(heads))
        assert found.isfinite().all()
        check(found, heads, bias)


def test_heads_and_masks_are_read_where_they_lie(random: Any) -> None:
    """Queries of a column side by side, slots of a longer cache, and components far apart."""
    query = random(2, 3, 4, 16).transpose(1, 2)
    store = random(2, 3, 2, 300, 16)[:, 1:, :, 1:200]
    apart = random(2, 2, 16, 199).transpose(2, 3)
    bias = _as_bias(random(2, 3, 199) > 0, torch.float32, 2)
    for key, value, added in (
        (store[0], store[1], bias), (apart, store[0], None), (store[1], apart, bias),
        (store[0], store[1], bias.transpose(2, 3).contiguous().transpose(2, 3)),
    ):  # fmt: skip
        heads = Heads(query, key, value)
        check(fused.attend(heads, added), heads, added)


@pytest.mark.parametrize(
    ("sizes", "num_shares"),
    [
        # B, H, G, Q, K, D: a step of 8 B, of two rows, with shared key heads, of long prompts.
        ((1, 32, 32, 32, 448, 128), 4),
        ((2, 32, 32, 32, 448, 128), 2),
        ((1, 28, 4, 32, 448, 128), 4),
        ((1, 32, 8, 1, 4160, 128), 13),
        ((1, 2, 2, 1, 9000, 128), 16),
        # Keys for one share, and rows enough.
        ((1, 32, 32, 32, 64, 128), 1),
        ((8, 32, 32, 32, 448, 128), 1),
        ((1, 32, 32, 448, 448, 128), 1),
    ],
    ids=str,
)
def test_most_processors_have_a_program(sizes: tuple[int, ...], num_shares: int) -> None:
    if not INTERPRETED:
        pytest.skip("counts the processors of an H100")
    B, H, G, Q, K, D = sizes
    query, key = torch.empty(B, H, Q, D), torch.empty(B, G, K, D)
    per_share = fused._tiling(Heads(query.bfloat16(), key.bfloat16(), key)).keys_per_share
    assert -(-K // per_share) == num_shares


def test_processors_are_counted_that_hold_the_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    fused._num_processors.cache_clear()
    for major, expected in ((7, 0), (8, 40), (9, 40)):
        found = SimpleNamespace(major=major, multi_processor_count=40)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, found=found: found)
        assert fused._num_processors(torch.device("cuda", 50 + major)) == expected
    fused._num_processors.cache_clear()


def test_what_needs_no_shares_is_left_to_torch(random: Any, launches: list[Any]) -> None:
    for sizes in ((2, 4, 2, 3, 64, 16), (2, 4, 2, 3, 1, 16), (4, 34, 34, 1, 100, 16)):
        heads = heads_of(random, sizes, torch.bfloat16)
        bias = _as_bias(ragged(sizes[0], sizes[4]), torch.bfloat16, 2)
        assert torch.equal(fused.attend(heads, bias), plain.attend(heads, bias))
    assert not launches


def test_an_empty_batch_stays_empty(random: Any, launches: list[Any]) -> None:
    heads = heads_of(random, (0, 4, 2, 3, 200, 16), torch.float32)
    assert fused.attend(heads, None).shape == (0, 3, 64)


def test_the_kernels_are_trusted_once_they_agree(
    random: Any, launches: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "least_ms", lambda run, _: run().ndim - 2.0)
    operations = CheckedOperations("here", load_kernels)
    heads = heads_of(random, (1, 2, 1, 4, 130, 16), torch.float32)
    assert torch.equal(operations.attend(heads, None), plain.attend(heads, None))
    # Both took one millisecond.
    launches.clear()
    operations.attend(heads, None)
    assert not launches
    operations = CheckedOperations("here", load_kernels, required=True)
    for _ in range(2):
        check(operations.attend(heads, None), heads, None)
    assert len(launches) == 4


def test_a_share_that_is_left_out_is_found(random: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = fused._launch

    def forgetful(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        if len(grid) == 1:
            mixed, sums, peaks, out, num_columns, num_heads, num_shares, *sizes = arguments
            arguments = (mixed, sums, peaks, out, num_columns, num_heads, num_shares - 1, *sizes)
        launch(kernel, grid, *arguments, **options)

    monkeypatch.setattr(fused, "_launch", forgetful)
    operations = CheckedOperations("here", load_kernels)
    heads = heads_of(random, (1, 2, 1, 4, 130, 16), torch.float32)
    with pytest.warns(UserWarning, match="The fused attend .*: it differs from torch by"):
        found = operations.attend(heads, None)
    assert torch.equal(found, plain.attend(heads, None))
