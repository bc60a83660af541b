"""Wino at equality; golden runs check the rule, and the independent loop also checks the copy."""

from dataclasses import replace

import torch
from plugins_under_test import pinned, positions, with_confidences

from samplers import Wino
from samplers.wino import WinoState


def test_both_thresholds_exclude_equality() -> None:
    row = (0.9, 0.9, 0.5, 0.51, 0.75)
    trust = torch.tensor([[0.75, 0.7, 0.0, 0.0, 0.0]], dtype=torch.float64)
    view = replace(with_confidences(row, committed=[0, 1]), leave_one_out=trust)
    state = WinoState(torch.zeros(1, 5, dtype=torch.bool), torch.tensor([4]))
    decision, _ = Wino(0.5, 0.75).step(pinned(view, confidence=[row]), state)
    assert positions(decision.commit) == [[3, 4]]
    assert positions(decision.remask) == [[1]]
