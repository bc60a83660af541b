"""The fused kernel's statistics against float64. Run by `test_kernel.py`, not alone.

Triton decides when it is imported whether kernels are compiled or interpreted, so these run in a
process of their own: interpreted on the CPU with TRITON_INTERPRET=1, else compiled on CUDA.
"""

import os
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from samplers import View
from samplers.logits import kernel as fused
from samplers.logits import statistics, summary

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
LANES = fused._NUM_LANES
HALF_AND_SINGLE = (torch.bfloat16, torch.float16, torch.float32)

# -inf less -inf is NaN on purpose, and dropped; the interpreter's numpy would warn of it.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")


def random_logits(
    *shape: int, seed: int = 0, scale: float = 6.0, dtype: torch.dtype = torch.float32
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(shape, generator=generator)).to(dtype)


def check(logits: Tensor) -> None:
    """Compares everything the kernel finds with float64, and the ids of ties with the lowest.

    Confidences above 0.99 are exact to 2e-7, whatever the size of the logits.
    """
    top, spread = fused.summarise(logits)
    exact = logits.double().cpu()
    ids = exact.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(top.tokens[..., 0].cpu(), ids.indices[..., 0])
    n = min(2, exact.shape[-1])
    assert torch.equal(top.logits[..., :n].double().cpu(), ids.values[..., :n])
    possible = ids.values[..., :n].isfinite()
    assert torch.equal(top.tokens[..., :n].cpu()[possible], ids.indices[..., :n][possible])
    assert ((top.tokens >= 0) & (top.tokens < exact.shape[-1])).all()
    share = exact.softmax(-1).amax(-1)
    found = 1.0 / (1.0 + spread.odds_against.double().cpu())
    torch.testing.assert_close(found, share, rtol=2e-6, atol=2e-7)
    assert ((found - share).abs() <= 2e-7)[share > 0.99].all()
    entropy = torch.special.entr(exact.softmax(-1)).sum(-1)
    torch.testing.assert_close(spread.entropy.double().cpu(), entropy, rtol=2e-6, atol=2e-6)
    assert spread.odds_against.isfinite().all()
    assert (spread.entropy.cpu()[exact.isfinite().sum(-1) == 1] == 0).all()


@pytest.mark.exhaustive(7)
@pytest.mark.parametrize("dtype", HALF_AND_SINGLE)
@pytest.mark.parametrize("vocab_size", [1, 2, 17, LANES - 1, LANES, LANES + 1, 2 * LANES + 1000])
def test_all_statistics_agree_with_float64(vocab_size: int, dtype: torch.dtype) -> None:
    check(random_logits(1, 2, vocab_size, dtype=dtype).to(DEVICE))


def near_one(dtype: torch.dtype) -> Tensor:
    """Logits of 20 to 60, and tails of 1e-6 to 1e-2 whose shares are too small to add to 1."""
    V, rows = 126_464, 8
    largest = torch.linspace(20, 60, rows)[None, :, None]
    logits = (largest + (torch.logspace(-6, -2, rows)[None, :, None] / V).log()).expand(-1, -1, V)
    logits = logits.clone()
    logits[..., 77_777] = largest[..., 0]
    assert (logits.to(dtype).double().softmax(-1).amax(-1) > 0.99).sum() >= rows - 1
    return logits.to(dtype)


def ties() -> Iterator[Tensor]:
    """Few different values: ties within a lane, between lanes, for the second place, everywhere."""
    for seed in range(3):
        logits = random_logits(1, 2, 3 * LANES + 5, seed=seed, scale=0.7).round()
        yield logits.clone()
        logits[..., 5::LANES] = 8.0
        yield logits.clone()
        logits[..., 3] = 9.0
        yield logits
    # The two best wherever they are, and equal: then the lower id is first.
    for first, second in (
        (0, 0), (7, LANES + 7), (LANES + 7, 7), (5, 9), (LANES + 9, 5), (2 * LANES, LANES)
    ):  # fmt: skip
        for value in (8.0, 9.0):
            logits = random_logits(1, 1, 2 * LANES + 40, scale=0.1)
            logits[..., second], logits[..., first] = value, 9.0
            yield logits
    yield torch.zeros(1, 1, 2 * LANES + 3)


def excluded() -> Iterator[Tensor]:
    """Windows most of whose tokens are excluded."""
    logits = random_logits(1, 4, 3 * LANES - 100)
    logits[:, 0, LANES : 2 * LANES] = -torch.inf
    logits[:, 1, : 2 * LANES] = -torch.inf
    logits[:, 2, torch.arange(logits.shape[-1]) % LANES != 77] = -torch.inf
    logits[:, 3, 1::2] = -torch.inf
    yield logits
    only = torch.full((1, 5, 2 * LANES + 1), -torch.inf)
    only[0, torch.arange(5), torch.tensor([0, 1, LANES - 1, LANES, 2 * LANES])] = torch.tensor(
        [0.0, -3e38, 3e38, 1e4, -1e4]
    )
    yield only


def extreme() -> Iterator[Tensor]:
    """Logits that would overflow or lose the entropy; a real vocabulary with its end in front."""
    logits = random_logits(1, 4, LANES + 30, scale=1.0)
    logits[:, 0] *= 1e4
    logits[:, 1] += 1e4
    logits[:, 2] -= 1e4
    logits[:, 3, 40] = 1e4
    yield logits
    yield logits.bfloat16()
    real = random_logits(1, 2, 126_464, dtype=torch.bfloat16)
    real[0, 0, -1] = 50.0
    real[0, 1, -2:] = torch.tensor([50.0, 49.0])
    yield real


@pytest.mark.parametrize("kind", [ties, excluded, extreme])
def test_statistics_of_rare_logits_agree_with_float64(kind: Callable[[], Iterator[Tensor]]) -> None:
    for logits in kind():
        check(logits.to(DEVICE))


@pytest.mark.exhaustive(1)
@pytest.mark.parametrize("dtype", HALF_AND_SINGLE)
def test_confidences_near_one_have_a_resolution_of_their_own(dtype: torch.dtype) -> None:
    check(near_one(dtype).to(DEVICE))


def test_logits_are_read_where_they_lie() -> None:
    wide = random_logits(2, 5, LANES + 50).to(DEVICE)
    for logits in (
        wide[:, 2:4], wide[1:, ::3], wide[:, :1, 10 : LANES + 13], wide[:, :1, ::2],
        wide[:, :2].transpose(0, 1), wide[:1, :1].expand(2, 2, -1), wide[..., :3].permute(1, 2, 0),
    ):  # fmt: skip
        check(logits)


@pytest.mark.parametrize("far", [0, 1, 2])
def test_offsets_beyond_32_bits_are_reached(far: int) -> None:
    """Pages that are never touched cost nothing on the CPU; a GPU needs 4.3 GB for a moment."""
    V = 9
    shape, strides = [1, 1, V], [V, V, 1]
    # The stride itself fits 32 bits, twice it does not.
    shape[far], strides[far] = 3, 2**30 + 16
    num = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    logits = torch.empty(num, dtype=torch.float16, device=DEVICE).as_strided(shape, strides)
    logits.copy_(random_logits(*shape))
    check(logits)


def test_a_nan_is_not_taken_for_certainty() -> None:
    logits = random_logits(1, 2, LANES + 5)
    logits[0, 0, LANES + 3] = torch.nan
    _, spread = fused.summarise(logits.to(DEVICE))
    assert spread.odds_against.isnan().tolist() == [[True, False]]
    assert spread.entropy.isnan().tolist() == [[True, False]]


def test_an_empty_batch_finds_nothing() -> None:
    top, spread = fused.summarise(torch.zeros(0, 3, 4, device=DEVICE))
    assert top.tokens.shape == (0, 3, 2)
    assert spread.entropy.shape == (0, 3)


@pytest.mark.parametrize("raised", [False, True], ids=["plain", "with a bonus"])
def test_a_view_finds_everything_in_one_launch(
    monkeypatch: pytest.MonkeyPatch, raised: bool
) -> None:
    launches = []

    class Counted:
        @staticmethod
        def summarise(logits: Tensor) -> object:
            launches.append(logits.shape)
            return fused.summarise(logits)

    def view(logits: Tensor) -> View:
        ones = torch.ones(2, 3, dtype=torch.bool, device=DEVICE)
        made = View(ones.long(), summary.Summary(logits), ones, ones, 0, 3)
        if raised:
            tokens = made.most_likely[..., None]
            made = made.with_logit_bias(tokens, torch.full(tokens.shape, 0.5, device=DEVICE))
        return made

    logits = random_logits(2, 3, LANES + 9, dtype=torch.bfloat16).to(DEVICE)
    names = ("proposal", "confidence", "margin", "entropy", "log_normaliser")
    with monkeypatch.context() as patched:
        patched.setattr(summary, "_kernel", lambda device, dtype: Counted)
        for scored_by_torch in ("top_k", "most_likely", "odds_against", "spread"):
            patched.delattr(statistics, scored_by_torch)
        found = view(logits)
        values = {name: getattr(found, name) for name in names}
    assert launches == [logits.shape]
    monkeypatch.setattr(summary, "_kernel", lambda device, dtype: None)
    plain = view(logits)
    for name, value in values.items():
        torch.testing.assert_close(value, getattr(plain, name), rtol=1e-5, atol=1e-6)
    assert len(launches) == 1


@pytest.mark.skipif(DEVICE == "cpu", reason="what View chooses on CUDA")
def test_a_view_on_cuda_uses_the_kernel() -> None:
    device = torch.zeros(1, device=DEVICE).device
    for dtype in HALF_AND_SINGLE:
        assert summary._kernel(device, dtype) is fused
    assert summary._kernel(device, torch.float64) is None
