from plugins_under_test import committed, pinned, with_confidences, with_entropies

from samplers import EntropyThreshold


def test_an_entropy_exactly_at_the_threshold_is_committed() -> None:
    view = pinned(with_confidences([0.5] * 3), entropy=[[0.5, 0.5000001, 0.25]])
    assert committed(EntropyThreshold(0.5), view) == [[0, 2]]


def test_eighty_to_twenty_just_fails_the_default() -> None:
    """Its entropy is .5004 nats; in bits, .7219, it would not be close."""
    assert committed(EntropyThreshold(), with_entropies([0.5004, 0.45, 0.5182])) == [[1]]


def test_a_row_above_the_threshold_commits_its_lowest_entropy() -> None:
    assert committed(EntropyThreshold(0.1), with_entropies([0.3, 0.2, 0.6], [0.2, 0.09, 0.05])) == [
        [1],
        [1, 2],
    ]


def test_the_lowest_entropy_need_not_be_the_highest_confidence() -> None:
    view = pinned(with_entropies([0.6, 0.4]), confidence=[[0.9, 0.1]])
    assert committed(EntropyThreshold(0.0), view) == [[1]]
