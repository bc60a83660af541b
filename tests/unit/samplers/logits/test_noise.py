"""Noise is a pure function of its keys, uniform and unrelated between neighbouring keys."""

import pytest
import torch

from samplers.logits import noise
from samplers.logits.noise import mix, uniform, wrap_seed


def test_mixing_agrees_with_the_published_generator() -> None:
    """SplitMix64 seeded with 0 and 1234567: the first outputs of the authors' C code."""
    unsigned = [value % 2**64 for value in mix(torch.tensor([0, 1234567])).tolist()]
    assert unsigned == [0xE220A8397B1DCDAF, 6457827717110365317]


def test_uniform_numbers_stay_strictly_inside_the_unit_interval() -> None:
    values = uniform(torch.arange(200_000))
    assert values.dtype == torch.float64
    assert 0.0 < values.min() < 1e-4
    assert 1.0 - 1e-4 < values.max() < 1.0
    counts = (values * 20).long().bincount(minlength=20)
    # Chi-square with 19 degrees of freedom: 43.8 is passed once in a thousand.
    assert ((counts - 10_000.0) ** 2 / 10_000.0).sum() < 43.8


def test_the_most_extreme_bits_stay_inside_the_unit_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The largest number made from 53 bits would round to 1, whose Gumbel is infinite."""
    monkeypatch.setattr(noise, "mix", lambda keys: keys)
    least, most = uniform(torch.tensor([0, -1])).tolist()
    assert 0.0 < least < 1e-15 < 1.0 - 1e-15 < most < 1.0


def test_seeds_that_are_counted_up_stay_in_64_bits() -> None:
    for seed in (-(2**63), -1, 0, 2**63 - 1):
        assert wrap_seed(seed) == seed
    assert wrap_seed(2**63) == -(2**63)
    assert wrap_seed(2**63 - 1 + (1 << 32)) == -(2**63) + (1 << 32) - 1
