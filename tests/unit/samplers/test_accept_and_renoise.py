"""Acceptance by entropy on views made by hand; golden runs are in tests/golden."""

import pytest
import torch
from plugins_under_test import view_of

from samplers.logits.noise import row_keys


def test_random_tokens_are_uniform_and_depend_on_row_position_and_step() -> None:
    view = view_of(torch.full((8, 512, 7), 1 / 7).double(), noise_keys=row_keys(0, torch.arange(8)))
    drawn = [view.at_step(torch.full((8,), step)).random_tokens() for step in range(3)]
    counts = torch.stack(drawn).flatten().bincount(minlength=view.vocab_size)
    expected = counts.sum() / len(counts)
    assert float(((counts - expected) ** 2 / expected).sum()) < 24.3  # 0.999 of chi-squared, df 7
    assert (drawn[0] != drawn[1]).double().mean() == pytest.approx(7 / 8, abs=0.02)
    assert (drawn[0][0] != drawn[0][1]).any()
    again = view.take(torch.tensor([3])).at_step(torch.tensor([2])).random_tokens()
    assert torch.equal(again[0], drawn[2][3])
