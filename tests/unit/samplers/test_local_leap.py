from plugins_under_test import committed, pinned, with_confidences

from samplers import ConfidenceThreshold, LocalLeap


def leaps(*confidences: float, **settings: float) -> list[int]:
    view = pinned(with_confidences(confidences), confidence=[confidences])
    return committed(LocalLeap(**settings), view)[0]  # type: ignore[arg-type]


def test_both_thresholds_include_equality() -> None:
    settings = {"threshold": 0.875, "relaxed_threshold": 0.5, "radius": 1}
    assert leaps(0.5, 0.875, 0.4999, 0.5, **settings) == [0, 1]


def test_the_radius_is_counted_in_positions_and_includes_its_end() -> None:
    row = (0.8, 0.8, 0.95, 0.8, 0.8)
    assert leaps(*row, radius=0) == [2]
    assert leaps(*row, radius=1) == [1, 2, 3]
    assert leaps(*row, radius=2) == [0, 1, 2, 3, 4]
    assert leaps(*row, radius=40) == [0, 1, 2, 3, 4]


def test_distance_runs_across_holes() -> None:
    view = with_confidences([0.95, 0.5, 0.5, 0.8, 0.8], committed=[1, 2])
    assert committed(LocalLeap(radius=3), view) == [[0, 3]]


def test_committed_tokens_are_no_anchors() -> None:
    view = with_confidences([0.99, 0.8, 0.7], committed=[0])
    assert committed(LocalLeap(relaxed_threshold=0.6), view) == [[1]]


def test_without_relaxation_it_is_the_plain_threshold() -> None:
    view = with_confidences([0.95, 0.8, 0.91, 0.2], [0.1, 0.2, 0.3, 0.2])
    assert committed(LocalLeap(0.9, 0.9), view) == committed(ConfidenceThreshold(0.9), view)
