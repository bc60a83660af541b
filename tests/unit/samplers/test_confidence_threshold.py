import torch
from plugins_under_test import committed, pinned, with_confidences

from samplers import ConfidenceThreshold


def test_a_confidence_exactly_at_the_threshold_is_committed() -> None:
    view = pinned(with_confidences([0.5, 0.5, 0.5]), confidence=[[0.75, 0.7499999, 0.875]])
    assert committed(ConfidenceThreshold(0.75), view) == [[0, 2]]


def test_each_row_that_reaches_no_threshold_commits_its_own_best() -> None:
    """A forced token must not depend on whether any other row passed."""
    view = with_confidences([0.95, 0.2, 0.92], [0.2, 0.3, 0.1], [0.6, 0.6, 0.5])
    assert committed(ConfidenceThreshold(0.9), view) == [[0, 2], [1], [0]]


def test_threshold_zero_is_a_whole_block_and_one_a_single_token() -> None:
    view = with_confidences([0.3, 0.8, 0.5])
    assert committed(ConfidenceThreshold(0.0), view) == [[0, 1, 2]]
    assert committed(ConfidenceThreshold(1.0), view) == [[1]]


def test_decisions_agree_in_all_precisions_away_from_the_threshold() -> None:
    generator = torch.Generator().manual_seed(0)
    view = with_confidences([0.5] * 32)
    logits = (4 * torch.randn(1, 32, 42, generator=generator)).bfloat16()
    exact = view.with_logits(logits.double())
    assert ((exact.confidence - 0.5).abs() > 1e-3).all()
    expected = committed(ConfidenceThreshold(0.5), exact)
    assert 1 < len(expected[0]) < 31
    for dtype in (torch.bfloat16, torch.float32):
        assert committed(ConfidenceThreshold(0.5), view.with_logits(logits.to(dtype))) == expected
