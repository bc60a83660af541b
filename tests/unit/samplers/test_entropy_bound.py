import math

import torch
from plugins_under_test import committed, pinned, with_confidences, with_entropies

from samplers import EntropyBound


def test_bound_zero_is_one_token_and_infinity_a_block() -> None:
    view = with_entropies([0.2, 0.1, 0.6], [0.6, 0.6, 0.6])
    assert committed(EntropyBound(0.0), view) == [[1], [0]]
    assert committed(EntropyBound(math.inf), view) == [[0, 1, 2], [0, 1, 2]]


def test_a_sum_exactly_at_the_bound_is_committed() -> None:
    view = pinned(with_confidences([0.5] * 3), entropy=[[0.25, 0.5, 0.125]])
    assert committed(EntropyBound(0.375), view) == [[0, 1, 2]]
    assert committed(EntropyBound(0.374), view) == [[0, 2]]


def test_it_takes_a_prefix_of_its_order_and_nothing_behind_a_failure() -> None:
    """A public implementation counts what passes, wherever it stands in the order."""
    view = with_entropies([0.1, 0.6, 0.5, 0.01])
    view = pinned(view, confidence=[[0.9, 0.8, 0.7, 0.6]], margin=[[0.1, 0.2, 0.3, 0.4]])
    assert committed(EntropyBound(0.2, "confidence"), view) == [[0, 1]]
    assert committed(EntropyBound(0.2, "margin"), view) == [[2, 3]]


def test_in_ascending_order_all_but_the_last_entropy_are_summed() -> None:
    generator = torch.Generator().manual_seed(3)
    rows = (0.3 * torch.rand(50, 8, generator=generator)).tolist()
    for row, got in zip(rows, committed(EntropyBound(0.2), with_entropies(*rows)), strict=True):
        ordered, n, before = sorted(row), 0, 0.0
        while n < 8 and before <= 0.2:
            before += ordered[n]
            n += 1
        assert len(got) == max(n, 1)


def test_positions_outside_the_block_add_no_entropy() -> None:
    view = with_entropies([0.6, 0.1, 0.6, 0.15])
    view.eligible[:, [0, 2]] = False
    assert committed(EntropyBound(0.1), view) == [[1, 3]]
