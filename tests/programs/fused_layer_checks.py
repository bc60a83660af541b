"""The fused operations of a layer against torch's. Run by `test_operations_triton.py`, not alone.

In a process of their own: interpreted on the CPU with TRITON_INTERPRET=1, else compiled on CUDA.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tiny_models import FAMILIES, load_tiny
from torch import Tensor

from dllm_decode.models import ForwardInputs, KVCache, MaskedTransformer
from dllm_decode.models.network import context as plan
from dllm_decode.models.network import operations_torch as plain
from dllm_decode.models.network import operations_triton as fused
from dllm_decode.models.network.fused import CheckedOperations
from dllm_decode.models.network.operations import (
    Heads,
    KVSlots,
    LayerKV,
    Projected,
    Rotation,
    Scaling,
    Stream,
)

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda:0")
HALF_AND_SINGLE = (torch.bfloat16, torch.float16, torch.float32)
DTYPE = pytest.mark.parametrize("dtype", HALF_AND_SINGLE, ids=str)
ON_CUDA = pytest.mark.skipif(INTERPRETED, reason="what a GPU does")
EVERYTHING = KVSlots(slice(None), slice(None), None)
LANES, TILE = fused._NUM_LANES, fused._NUM_HEADS

# exp of a large number is infinite on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")


def assert_same(got: Tensor, wanted: Tensor, *, steps: int = 1) -> None:
    """Half precision: the same bits but where a sum lay between two numbers; single: nearly."""
    assert got.shape == wanted.shape
    assert got.dtype == wanted.dtype
    if got.dtype == torch.float32:
        torch.testing.assert_close(got, wanted, rtol=3e-6, atol=3e-6)
        return
    step = steps * torch.finfo(got.dtype).eps
    torch.testing.assert_close(got, wanted, rtol=step, atol=step / 64)
    # A rounding that is left out or added shows in about every fourth number.
    assert (got != wanted).float().mean() < 0.02


@pytest.mark.exhaustive(6)
@DTYPE
@pytest.mark.parametrize("in_float32", [False, True], ids=["weight after", "weight in float32"])
@pytest.mark.parametrize("size", [1, 100, 3584])
def test_norms_are_those_of_torch(random, size: int, in_float32: bool, dtype: torch.dtype) -> None:
    scaling = Scaling(random(size, dtype=dtype), 1e-5, in_float32)
    hidden, update = random(2, 2, 3, size, dtype=dtype)
    # A norm near eps, and one that float16 cannot square.
    hidden[0, 0] *= 1e-3
    hidden[1, 1] *= 500
    for stream in (Stream(hidden), Stream(hidden, update)):
        before = [part.clone() for part in (hidden, update)]
        got, wanted = fused.add_norm(stream, scaling), plain.add_norm(stream, scaling)
        assert torch.equal(got.hidden, wanted.hidden)
        assert_same(got.normed, wanted.normed, steps=1 if in_float32 else 2)
        assert all(map(torch.equal, before, (hidden, update)))


def test_norms_and_products_are_read_where_they_lie(random) -> None:
    wide = random(5, 4, 2, 64)
    for hidden in (wide[:, :, 0], wide[::2, 1:, 1, :40], wide[..., 0, :].transpose(0, 1)):
        scaling = Scaling(random(hidden.shape[-1]), 1e-6, True)
        stream = Stream(hidden, hidden.flip(1))
        for got, wanted in zip(
            fused.add_norm(stream, scaling), plain.add_norm(stream, scaling), strict=True
        ):
            assert_same(got, wanted)
        assert_same(fused.swiglu(hidden), plain.swiglu(hidden))


@pytest.mark.exhaustive(4)
@DTYPE
@pytest.mark.parametrize("size", [1, LANES, 2 * LANES + 300])
def test_products_are_those_of_torch(random, size: int, dtype: torch.dtype) -> None:
    gate_up = random(2, 3, 2 * size, dtype=dtype, scale=3.0)
    gate_up[0, 0, 0], gate_up[1, 1, 0], gate_up[1, 2, 0] = -90.0, 90.0, 0.0
    assert_same(fused.swiglu(gate_up), plain.swiglu(gate_up))


def rotation_of(angles: Tensor, dtype: torch.dtype) -> Rotation:
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    return Rotation(torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))


def both(
    heads: Tensor,
    rotation: Rotation,
    kv_cache: Tensor | None,
    target: KVSlots | None,
    **options: Any,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields what the fused operation finds and writes, each with what torch does."""
    found: list[list[Tensor]] = []
    for operations in (fused, plain):
        store, written = None, []
        if kv_cache is not None and target is not None:
            # The memory, and all that is around it.
            written = [(kv_cache if kv_cache._base is None else kv_cache._base).clone()]
            held = written[0].as_strided(
                kv_cache.shape, kv_cache.stride(), kv_cache.storage_offset()
            )
            store = LayerKV(held[0], held[1], target)
        made: Heads = operations.rotate_and_store(Projected(heads, **options), rotation, store)
        found.append([*made, *written])
    yield from zip(*found, strict=True)


@pytest.mark.exhaustive(6)
@pytest.mark.parametrize(
    ("dtype", "kept"),
    [
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
    ],
    ids=["rope in dtype", "rope in float32", "single"],
)
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"),
    [(1, 1, 2), (TILE + 1, 1, 64), (6, 3, 96), (2 * TILE, TILE, 128), (7, 7, 6)],
)
def test_rotated_heads_have_the_bits_of_torch(
    random, num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, kept: torch.dtype
) -> None:
    heads = random(2, 2, num_heads + 2 * num_kv_heads, head_dim, dtype=dtype)
    angles = random(2, 1, 2, head_dim // 2, scale=9.0)
    rotation = rotation_of(angles, kept)
    kv_cache = random(2, 2, num_kv_heads, 5, head_dim, dtype=dtype)
    target = KVSlots(slice(None), slice(1, 3), None)
    for stored in (None, kv_cache):
        options: Any = {"num_kv_heads": num_kv_heads, "scalings": None}
        for got, wanted in both(heads, rotation, stored, target, **options):
            assert torch.equal(got, wanted)


@pytest.mark.exhaustive(2)
@DTYPE
@pytest.mark.parametrize("in_float32", [False, True], ids=["weight after", "weight in float32"])
def test_queries_and_keys_are_normalised_before_rotation(
    random, in_float32: bool, dtype: torch.dtype
) -> None:
    scalings = (
        Scaling(random(48, dtype=dtype), 1e-5, in_float32),
        Scaling(random(48, dtype=dtype), 0.5, in_float32),
    )
    heads = random(2, 3, 10 + 4, 48, dtype=dtype, scale=2.0)
    kv_cache = random(2, 2, 2, 5, 48, dtype=dtype)
    target = KVSlots(slice(None), slice(1, 4), None)
    for kept in (torch.float32, dtype):
        rotation = rotation_of(random(2, 1, 3, 24, scale=9.0), kept)
        for got, wanted in both(
            heads, rotation, kv_cache, target, num_kv_heads=2, scalings=scalings
        ):
            assert got.dtype == dtype
            # Where a sum of two cancels, a step of these is many of its own.
            step = 3e-6 if dtype == torch.float32 else 8 * torch.finfo(dtype).eps
            torch.testing.assert_close(got, wanted, rtol=step, atol=step)
            assert dtype == torch.float32 or (got != wanted).float().mean() < 0.02


def rows_and_slots() -> Iterator[tuple[slice | Tensor, slice | Tensor]]:
    """Every kind of target of three rows of two columns, in a memory of five rows."""
    slots = torch.tensor([[6, 0], [3, 8], [4, 4]], device=DEVICE)
    shared = torch.tensor([7, 2], device=DEVICE).expand(3, 2)
    rows = torch.tensor([4, 0, 2], device=DEVICE)
    every_other = torch.tensor([4, 1, 0, 1, 2, 1], device=DEVICE)[::2]
    for kind in (slice(0, 3), slice(1, 4), slice(0, 5, 2), slice(-3, None), every_other):
        yield kind, slots
    for kind in (shared, slots.repeat(1, 2)[:, 1:3], slots.T.contiguous().T, slice(2, 4)):
        yield rows, kind
    yield slice(2, 5), slice(0, 4, 2)


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("layout", ["first slots", "slots outside", "heads inside"])
def test_keys_and_values_go_where_torch_puts_them(random, layout: str) -> None:
    if layout == "first slots":
        kv_cache = random(2, 5, 3, 12, 8)[..., :9, :]
    elif layout == "slots outside":
        kv_cache = random(2, 9, 5, 3, 8).permute(0, 2, 3, 1, 4)
    else:
        kv_cache = random(2, 5, 9, 8, 3).permute(0, 1, 4, 2, 3)
    heads, angles = random(3, 2, 3 + 6, 8), random(3, 1, 2, 4)
    # A slot that several columns of a row have is written alike by all of them.
    heads[2], angles[2] = heads[2, :1], angles[2, :, :1]
    rotation = rotation_of(angles, torch.float32)
    for rows, slots in rows_and_slots():
        target = plan._target(rows, slots, 5)
        for got, wanted in both(heads, rotation, kv_cache, target, num_kv_heads=3, scalings=None):
            assert torch.equal(got, wanted)


def test_nothing_is_written_outside_of_the_memory(random) -> None:
    around = random(2, 5, 2, 9, 32)
    kv_cache, before = around[:, 1:4, :, 2:7], around.clone()
    heads, rotation = random(2, 2, 2 + 4, 32), rotation_of(random(2, 1, 2, 16), torch.float32)
    outside = torch.tensor([[5, -1], [6, -2]], device=DEVICE)
    rows = torch.tensor([-1, 3], device=DEVICE)
    for target in (
        KVSlots(slice(0, 2), outside, None),
        KVSlots(rows, outside.clamp(1, 3), None),
        KVSlots(rows, slice(0, 2), None),
    ):
        # A later read of such rows is refused by torch.
        read = KVSlots(slice(0, 2), slice(None), None)
        launched = [*fused._indices(target, kv_cache[0])]
        assert launched[1] == 3
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(fused, "_indices", lambda *_, found=launched: found)
            fused.rotate_and_store(
                Projected(heads, 2), rotation, LayerKV(kv_cache[0], kv_cache[1], read)
            )
        assert torch.equal(around, before)


@pytest.mark.parametrize("far", [0, 1, 2])
def test_offsets_beyond_32_bits_are_reached(random, far: int) -> None:
    """Pages that are never touched cost nothing on the CPU; a GPU needs 4.3 GB for a moment."""
    strides = [72, 24, 8, 1]
    # The stride itself fits 32 bits, twice it does not.
    strides[far] = 2**30 + 16
    num = 1 + 2 * sum(strides[:3]) + 7
    keys = torch.empty(num, dtype=torch.float16, device=DEVICE).as_strided((3, 3, 3, 8), strides)
    store = LayerKV(keys, torch.empty_like(keys, memory_format=torch.contiguous_format), EVERYTHING)
    heads = random(3, 3, 3 + 6, 8, dtype=torch.float16)
    rotation = rotation_of(random(3, 1, 3, 4), torch.float32)
    projected = Projected(heads, 3)
    fused.rotate_and_store(projected, rotation, store)
    assert torch.equal(keys, plain.rotate_and_store(projected, rotation, None).key)


@ON_CUDA
def test_numbers_beyond_32_bits_are_reached(random) -> None:
    hidden = torch.empty(1, 2**19 + 8, 4096, dtype=torch.float16, device=DEVICE)
    hidden[:, -2:] = random(1, 2, 4096, dtype=torch.float16)
    scaling = Scaling(random(4096, dtype=torch.float16), 1e-5, True)
    wanted = plain.add_norm(Stream(hidden[:, -2:]), scaling).normed
    assert_same(fused.add_norm(Stream(hidden), scaling).normed[:, -2:], wanted)
    assert_same(fused.swiglu(hidden)[:, -2:], plain.swiglu(hidden[:, -2:]))


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 4), (4, 2)])
def test_queries_lie_as_attention_hands_them_on(random, num_heads: int, num_kv_heads: int) -> None:
    heads = random(2, 3, num_heads + 2 * num_kv_heads, 8)
    rotation = rotation_of(random(2, 1, 3, 4), torch.float32)
    made = fused.rotate_and_store(Projected(heads, num_kv_heads), rotation, None)
    laid = made.query.transpose(1, 2) if num_heads == num_kv_heads else made.query
    assert laid.is_contiguous()


def test_an_empty_batch_stays_empty() -> None:
    heads = torch.zeros(0, 3, 6, 8, device=DEVICE)
    rotation = rotation_of(torch.zeros(0, 1, 3, 4, device=DEVICE), torch.float32)
    made = fused.rotate_and_store(Projected(heads, 2), rotation, None)
    assert made.query.shape == (0, 2, 3, 8)
    normed = fused.add_norm(Stream(heads[..., 0]), Scaling(torch.ones(6), 1e-5, True)).normed
    assert fused.swiglu(normed).shape == (0, 3, 3)


def forwards(model: MaskedTransformer) -> Iterator[tuple[ForwardInputs, KVCache | None]]:
    """Forwards of several kinds, each with the memory it writes to."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(500, (2, 5), generator=generator).to(DEVICE)
    columns = torch.arange(5, device=DEVICE).expand(2, 5)
    wanted = torch.tensor([[3, 4, 0], [1, 1, 2]], device=DEVICE)
    seen = (torch.rand(2, 5, 5, generator=generator) > 0.3).to(DEVICE)
    yield ForwardInputs(tokens, columns, wanted, attend=seen), None
    for rows in (slice(1, 3), torch.tensor([2, 0], device=DEVICE)):
        kv_cache = model.new_kv_cache(3, 8).first(5)
        yield (
            ForwardInputs(
                tokens, columns, wanted, kv_cache=kv_cache, slots=slice(0, 5), rows=rows
            ),
            kv_cache,
        )  # fmt: skip
        block = columns[:, 1:3] + torch.arange(2, device=DEVICE)[:, None]
        chosen, few = tokens.gather(1, block), wanted.clamp(max=1)
        attend = seen[:, :1] if isinstance(rows, slice) else seen[:, :2]
        yield ForwardInputs(chosen, block, few, attend, kv_cache, slots=block, rows=rows), kv_cache
    # A block step over so many keys that attention is shared out; the second row is shorter.
    kv_cache = model.new_kv_cache(2, 200)
    tokens = torch.randint(500, (2, 200), generator=generator).to(DEVICE)
    columns = torch.arange(200, device=DEVICE).expand(2, 200)
    attend = (columns >= torch.tensor([[0], [50]], device=DEVICE))[:, None]
    yield ForwardInputs(tokens, columns, wanted, attend, kv_cache, slice(0, 200)), kv_cache
    block = columns[:, 120:128]
    yield ForwardInputs(tokens[:, :8], block, wanted, attend, kv_cache, block), kv_cache


def compare(
    model: MaskedTransformer,
    predict: Callable[[ForwardInputs], Tensor],
    choose: Callable[[Any], None],
) -> None:
    for fresh, torch_s in zip(forwards(model), forwards(model), strict=True):
        found = []
        for operations, (inputs, kv_cache) in ((fused, fresh), (plain, torch_s)):
            choose(operations)
            logits = predict(inputs) if operations is fused else model.predict(inputs)
            found.append([logits] if kv_cache is None else [logits, *kv_cache.buffers])
        for got, wanted in zip(*found, strict=True):
            if model.dtype == torch.float32:
                torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
            else:
                error = (got.float() - wanted.float()).square().mean().sqrt()
                assert error < 0.02 * wanted.float().std()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_whole_forwards_are_those_of_torch(
    family: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_tiny(family, device=str(DEVICE), dtype=dtype)
    model.graphs = False
    chosen: list[Any] = [plain]
    monkeypatch.setattr(plan, "operations_for", lambda device, dtype, fused: chosen[-1])
    compare(model, model.predict, chosen.append)
    assert fused in chosen


@ON_CUDA
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_captured_forwards_are_those_of_torch(
    family: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_tiny(family, device=str(DEVICE), dtype=dtype)
    model.graphs = False
    chosen: list[Any] = [plain]
    monkeypatch.setattr(plan, "operations_for", lambda device, dtype, fused: chosen[-1])

    def captured(inputs: ForwardInputs) -> Tensor:
        before = (
            [] if inputs.kv_cache is None else [part.clone() for part in inputs.kv_cache.buffers]
        )
        model.predict(inputs)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = model.predict(inputs)
        # The recording must write again all that the first forward wrote.
        for held, old in zip(inputs.kv_cache.buffers if before else (), before, strict=True):
            held.copy_(old)
        graph.replay()
        return logits

    compare(model, captured, chosen.append)


@ON_CUDA
def test_forwards_on_cuda_use_the_kernels() -> None:
    for dtype in HALF_AND_SINGLE:
        with torch.inference_mode():
            assert isinstance(plan.operations_for(DEVICE, dtype), CheckedOperations)
            assert plan.operations_for(DEVICE, dtype, False) is plain
        assert plan.operations_for(DEVICE, dtype) is plain
    with torch.inference_mode():
        assert plan.operations_for(DEVICE, torch.float64) is plain


@ON_CUDA
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_kernels_agree_with_torch_when_they_are_first_used(
    family: str, dtype: torch.dtype
) -> None:
    model = load_tiny(family, device=str(DEVICE), dtype=dtype, fused=True)
    for inputs, _ in forwards(model):
        model.predict(inputs)
    with torch.inference_mode():
        operations = plan.operations_for(DEVICE, dtype, True)
    assert len(operations._chosen) >= 4
    assert not operations.failed
