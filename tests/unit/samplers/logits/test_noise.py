"""Noise is a pure function of its keys, uniform and unrelated between neighbouring keys."""

import torch

from samplers.logits.noise import gumbel, mix, uniform


def test_mixing_agrees_with_the_published_generator() -> None:
    """SplitMix64 seeded with 0 and 1234567: the first outputs of the authors' C code."""
    unsigned = [value % 2**64 for value in mix(torch.tensor([0, 1234567])).tolist()]
    assert unsigned == [0xE220A8397B1DCDAF, 6457827717110365317]


def test_neighbouring_keys_share_no_pattern() -> None:
    keys = mix(torch.arange(4096))
    assert len(keys.unique()) == 4096
    bits = (keys[:, None] >> torch.arange(64)) & 1
    assert ((bits.double().mean(0) - 0.5).abs() < 0.05).all()
    flips = ((keys[1:] ^ keys[:-1])[:, None] >> torch.arange(64)) & 1
    assert ((flips.double().mean(0) - 0.5).abs() < 0.05).all()


def test_uniform_numbers_stay_strictly_inside_the_unit_interval() -> None:
    values = uniform(torch.arange(200_000))
    assert values.dtype == torch.float64
    assert 0.0 < values.min() < 1e-4
    assert 1.0 - 1e-4 < values.max() < 1.0
    counts = (values * 20).long().bincount(minlength=20)
    # Chi-square with 19 degrees of freedom: 43.8 is passed once in a thousand.
    assert ((counts - 10_000.0) ** 2 / 10_000.0).sum() < 43.8


def test_the_most_extreme_keys_give_finite_gumbels() -> None:
    """The largest number made from 53 bits would round to 1, whose Gumbel is infinite."""
    bits = torch.tensor([0, 2**52 - 1])
    extremes = (bits.double() + 0.5) * 2.0**-52
    assert (extremes > 0).all()
    assert (extremes < 1).all()
    assert (-torch.log(-torch.log(extremes))).isfinite().all()
    assert gumbel(torch.arange(500), 300).isfinite().all()
