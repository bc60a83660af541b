"""T2M with a given EOS; golden runs of the official code check the other cases."""

import torch
from plugins_under_test import positions, view_of

from samplers import T2M


def test_a_block_that_is_full_ends_with_an_eos_of_its_own_but_not_with_a_given_one() -> None:
    shares = torch.tensor([[[0.9, 0.1, 0.0], [0.9, 0.1, 0.0], [0.1, 0.0, 0.9]]])
    full, given = torch.tensor([[[True] * 3], [[True, True, False]]])
    masked, tokens = torch.tensor([[False, True, False]]), torch.tensor([[0, 3, 2]])
    for eligible, stop, settled in ((full, True, [0, 1, 2]), (full, False, []), (given, True, [])):
        view = view_of(shares.double(), eligible, masked=masked, tokens=tokens, eos_ids=(2,))
        sampler = T2M(eos_early_stop=stop)
        decision, _ = sampler.step(view, sampler.init(view))
        assert positions(decision.settle) == [settled]
