from plugins_under_test import committed, pinned, with_confidences

from samplers import Hierarchy


def test_both_thresholds_exclude_equality() -> None:
    row = (0.75, 0.5, 0.0, 0.25, 0.0, 0.26, 0.9)
    view = pinned(with_confidences(row, committed=[2, 4]), confidence=[row])
    assert committed(Hierarchy(0.25, 0.5), view) == [[0, 6]]
    assert committed(Hierarchy(0.24, 0.49), view) == [[0, 1, 3, 6]]


def test_of_a_tied_run_only_the_leftmost_is_committed() -> None:
    row = (0.6, 0.6, 0.6, 0.5, 0.6, 0.6)
    view = pinned(with_confidences(row, committed=[3]), confidence=[row])
    assert committed(Hierarchy(), view) == [[0, 4]]


def test_runs_end_at_given_tokens_and_at_the_edges_of_the_block() -> None:
    view = with_confidences([0.5, 0.6, 0.5, 0.7, 0.5, 0.5, 0.6])
    view.eligible[:, [2, 4]] = False
    assert committed(Hierarchy(), view) == [[1, 3, 6]]
    # The rest of the canvas is masked too, but not open.
    view.eligible[:, 5:] = False
    assert committed(Hierarchy(), view) == [[1, 3]]


def test_a_high_threshold_of_one_leaves_the_best_of_each_run() -> None:
    view = with_confidences([0.95, 0.97, 0.1, 0.99, 0.98], committed=[2])
    assert committed(Hierarchy(0.4, 1.0), view) == [[1, 3]]


def test_below_the_low_threshold_only_the_rows_best_is_committed() -> None:
    view = with_confidences([0.2, 0.1, 0.3, 0.1, 0.1], committed=[1, 3])
    assert committed(Hierarchy(), view) == [[2]]
