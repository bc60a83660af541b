import pytest
import torch
from plugins_under_test import pinned, run, still, view_of, with_confidences

from samplers import Less, View
from samplers.less import _coarse_divergence


def test_without_history_only_the_best_is_committed_until_enough_steps_agree() -> None:
    assert run(Less(), *still(0.8, 0.85, 0.9, 0.95, steps=3)) == [[[3]], [[2]], [[0, 1]]]
    views = still(0.8, 0.85, 0.9, 0.95, steps=2)
    assert run(Less(num_stable_steps=1), *views) == [[[3]], [[0, 1, 2]]]


def test_the_confidence_includes_equality() -> None:
    views = [
        pinned(view, confidence=[[0.75, 0.7499, 0.9, 0.8, 0.76]])
        for view in still(0.5, 0.5, 0.5, 0.5, 0.5, steps=3)
    ]
    assert run(Less(), *views) == [[[2]], [[3]], [[0, 4]]]


def test_a_drift_beyond_the_threshold_waits() -> None:
    views = [
        with_confidences(row)
        for row in [(0.8, 0.9, 0.95, 0.96), (0.8, 0.9, 0.95, 0.96), (0.99, 0.9, 0.95, 0.96)]
    ]
    # The Jensen-Shannon divergence of .99 from .8 is about .05.
    assert run(Less(), *views) == [[[3]], [[2]], [[1]]]
    views[2] = with_confidences((0.9, 0.9, 0.95, 0.96))
    assert run(Less(), *views)[2] == [[0, 1]]


def swapped(view: View, position: int) -> View:
    """Returns the view with the logits of tokens 0 and 1 swapped at a position."""
    logits = view.logits.clone()
    logits[:, position, [0, 1]] = logits[:, position, [1, 0]]
    return view.with_logits(logits)


def test_another_leading_token_starts_the_count_again() -> None:
    views = still(0.8, 0.85, 0.9, 0.95, steps=4)
    views[1:] = [swapped(view, 0) for view in views[1:]]
    # One step after the change the drift is gone, but only one earlier step agrees.
    assert run(Less(), *views) == [[[3]], [[2]], [[1]], [[0]]]
    loose = Less(drift_threshold=1.0, num_stable_steps=1)
    assert run(loose, *still(0.8, 0.85, 0.9, 0.95, steps=2)[:1], *views[1:2]) == [[[3]], [[1, 2]]]


def test_the_drift_is_that_of_the_distributions_with_the_rest_in_one() -> None:
    new, old = torch.tensor([[[0.6, 0.2]]]), torch.tensor([[[0.5, 0.1]]])
    drift = _coarse_divergence(torch.tensor([[[1, 2]]]), new, torch.tensor([[[3, 1]]]), old)
    # Tokens 1, 2 and 3, then the rest.
    p = torch.tensor([0.6, 0.2, 0.0, 0.2])
    q = torch.tensor([0.1, 0.0, 0.5, 0.4])
    middle = (p + q) / 2
    expected = (torch.xlogy(p, p / middle) + torch.xlogy(q, q / middle)).sum() / 2
    assert drift.item() == pytest.approx(expected.item(), abs=1e-6)


def test_a_vocabulary_smaller_than_eight_is_enough() -> None:
    probabilities = torch.tensor([[[0.9, 0.1], [0.8, 0.2], [0.95, 0.05], [0.96, 0.04]]]).double()
    assert run(Less(), *(view_of(probabilities) for _ in range(3))) == [[[3]], [[2]], [[0, 1]]]
