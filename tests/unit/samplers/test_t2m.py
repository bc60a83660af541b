"""T2M where an EOS was given; golden runs of the official code hold all other rules."""

import torch
from plugins_under_test import positions, view_of

from samplers import T2M


def test_a_block_that_is_full_ends_with_an_eos_of_its_own_but_not_with_a_given_one() -> None:
    shares = torch.tensor([[[0.9, 0.1, 0.0], [0.9, 0.1, 0.0], [0.1, 0.0, 0.9]]])
    own, given = torch.tensor([[[True] * 3], [[True, True, False]]])
    masked, tokens = torch.tensor([[False, True, False]]), torch.tensor([[0, 3, 2]])
    for eligible, stops, settled in ((own, True, [0, 1, 2]), (own, False, []), (given, True, [])):
        view = view_of(shares.double(), eligible, masked=masked, tokens=tokens, eos_ids=(2,))
        sampler = T2M(eos_early_stop=stops)
        decision, _ = sampler.step(view, sampler.init(view))
        assert decision.settle is not None
        assert positions(decision.settle) == [settled]
