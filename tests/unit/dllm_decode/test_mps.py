"""Numbers on devices without float64, as Apple's are."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from plugins_under_test import view_of
from pretended import MPS, Accelerator
from tiny_models import MODELS
from tiny_models import load_without_tokenizer as load_model

from samplers import FixedSchedule
from samplers.logits.float64 import has_float64, widest
from samplers.logits.noise import uniform
from samplers.logits.statistics import draw, log_probability


@pytest.mark.parametrize("has_fp64", [True, False])
def test_some_of_intels_devices_have_no_float64(
    has_fp64: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = SimpleNamespace(has_fp64=has_fp64)
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda device: properties)
    device = torch.device("xpu", 62 + has_fp64)
    assert has_float64(device) == has_fp64
    assert widest(device) == (torch.float64 if has_fp64 else torch.float32)


def test_uniform_numbers_without_float64_are_close_to_those_with_it() -> None:
    keys = torch.arange(200_000) * 7919
    exact = uniform(keys)
    with Accelerator(MPS):
        found = uniform(keys.to("mps")).cpu()
    assert found.dtype == torch.float32
    assert (found.double() - exact).abs().max() <= 2.0**-24
    # Strictly inside (0, 1), and in the same order but for those that became equal.
    assert found.min() > 0.0
    assert found.max() < 1.0
    ordered = found[exact.argsort()]
    assert (ordered[1:] >= ordered[:-1]).all()
    assert (ordered[1:] == ordered[:-1]).any(), "nothing was rounded"


def test_draws_without_float64_are_the_same_tokens() -> None:
    torch.manual_seed(0)
    logits, keys = torch.randn(3, 5, 4099) * 4.0, torch.arange(15).view(3, 5) * 104729
    for temperature in (0.05, 0.7, 1.3):
        expected = draw(logits, temperature, keys)
        logs = log_probability(logits, expected, temperature)
        with Accelerator(MPS):
            there = draw(logits.to("mps"), temperature, keys.to("mps"))
            assert there.device == MPS
            found = log_probability(logits.to("mps"), there, temperature).cpu()
        assert torch.equal(there.cpu(), expected)
        assert found.dtype == torch.float32
        assert torch.equal(found, logs.float())


@pytest.mark.parametrize("num_steps", [5, 7, 64, 1000])
def test_quotas_of_dream_without_float64_are_the_same(num_steps: int) -> None:
    """In float32, floor(m (1 - t' / t)) is one less for some m."""
    sampler, masks = FixedSchedule(num_steps, schedule="dream"), torch.arange(1, 513)
    for step in (0, 1, num_steps - 1):
        steps = torch.full_like(masks, step)
        expected = sampler._dream_quota(masks, steps)
        with Accelerator(MPS):
            found = sampler._dream_quota(masks.to("mps"), steps.to("mps"))
            assert all(part.device == MPS for part in found)
        assert all(torch.equal(a, b.cpu()) for a, b in zip(expected, found, strict=True))


def test_progress_without_float64_is_rounded_to_float32() -> None:
    committed = torch.arange(129)
    view = view_of(torch.zeros(129, 2, 3), committed=committed, gen_length=128)
    assert view.progress.dtype == torch.float64
    with Accelerator(MPS):
        there = replace(view, tokens=view.tokens.to("mps"), committed=committed.to("mps"))
        assert torch.equal(there.progress.cpu(), view.progress.float())


def test_weights_in_float64_are_refused_there() -> None:
    with Accelerator(MPS), pytest.raises(ValueError, match="float64, which mps devices do not"):
        load_model(MODELS / "llada", dtype="float64", device="mps")
