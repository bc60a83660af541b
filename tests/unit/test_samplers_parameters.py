"""Each sampler refuses settings outside their range, in one sentence with the value."""

import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError

import pytest

from samplers import (
    ConfidenceThreshold,
    EntropyBound,
    EntropyThreshold,
    Factor,
    FixedSchedule,
    Frechet,
    Hierarchy,
    Klass,
    Less,
    LocalLeap,
    Sampler,
)


def unchecked(kind: type[Sampler], **settings: object) -> Sampler:
    """Constructs a sampler behind the back of the tests' type checker, which would refuse first."""
    sampler = object.__new__(kind)
    sampler.__dict__.update(settings)
    kind.__post_init__(sampler)  # type: ignore[attr-defined]  # every dataclass here has one
    return sampler


NAN = math.nan
REFUSED: list[tuple[Callable[[], Sampler], str]] = [
    (lambda: ConfidenceThreshold(1.5), r"threshold is a probability in \[0, 1\], got 1.5."),
    (lambda: ConfidenceThreshold(NAN), r"threshold is a probability in \[0, 1\], got nan."),
    (lambda: EntropyBound(-0.1), "bound is an entropy in nats, at least 0, got -0.1."),
    (lambda: EntropyBound(NAN), "bound is an entropy in nats, at least 0, got nan."),
    (
        lambda: unchecked(EntropyBound, bound=0.1, order="random"),
        "order is one of entropy, confidence, margin, got 'random'.",
    ),
    (lambda: EntropyThreshold(-1.0), "threshold is an entropy in nats, at least 0, got -1.0."),
    (lambda: EntropyThreshold(NAN), "threshold is an entropy in nats, at least 0, got nan."),
    (lambda: Factor(-1.0), "factor is at least 0, got -1.0."),
    (lambda: Factor(NAN), "factor is at least 0, got nan."),
    (
        lambda: unchecked(Factor, factor=1.0, variant="strict"),
        "variant is one of paper, inclusive, official, got 'strict'.",
    ),
    (lambda: FixedSchedule(0), "steps_per_block is at least 1, got 0."),
    (lambda: Frechet(1.5), "margin is a difference of probabilities, <= 1, got 1.5."),
    (lambda: Frechet(NAN), "margin is a difference of probabilities, <= 1, got nan."),
    (lambda: Hierarchy(-0.1), r"low_threshold is a probability in \[0, 1\], got -0.1."),
    (lambda: Hierarchy(0.4, 1.1), r"high_threshold is a probability in \[0, 1\], got 1.1."),
    (lambda: Klass(2.0), r"threshold is a probability in \[0, 1\], got 2.0."),
    (lambda: Klass(0.9, -0.1), "kl_threshold is a divergence in nats, at least 0, got -0.1."),
    (lambda: Klass(0.9, 0.1, 0), "num_stable_steps is at least 1, got 0."),
    (lambda: Klass(steps_per_block=0), "steps_per_block is at least 1, got 0."),
    (lambda: Less(2.0), r"threshold is a probability in \[0, 1\], got 2.0."),
    (lambda: Less(0.9, -0.1), "drift_threshold is a divergence in nats, at least 0, got -0.1."),
    (lambda: Less(0.9, 0.1, 0), "num_stable_steps is at least 1, got 0."),
    (lambda: Less(steps_per_block=0), "steps_per_block is at least 1, got 0."),
    (lambda: LocalLeap(1.1), r"threshold is a probability in \[0, 1\], got 1.1."),
    (
        lambda: LocalLeap(0.9, 0.95),
        r"relaxed_threshold is a probability in \[0, threshold=0.9\], got 0.95.",
    ),
    (lambda: LocalLeap(radius=-1), "radius is at least 0 positions, got -1."),
]


@pytest.mark.parametrize(("construct", "message"), REFUSED, ids=[text for _, text in REFUSED])
def test_a_setting_outside_its_range_is_refused(
    construct: Callable[[], Sampler], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        construct()


def test_the_defaults_are_the_published_ones() -> None:
    assert ConfidenceThreshold() == ConfidenceThreshold(0.9)
    assert EntropyBound() == EntropyBound(0.1, "entropy")
    assert EntropyThreshold() == EntropyThreshold(0.5)
    assert Factor() == Factor(1.0, "paper")
    assert Frechet() == Frechet(0.25)
    assert Hierarchy() == Hierarchy(0.4, 0.9)
    assert Klass() == Klass(0.9, 0.01, 2)
    assert Less() == Less(0.75, 0.04, 2)
    assert LocalLeap() == LocalLeap(0.9, 0.75, 4)


def test_settings_cannot_be_changed_afterwards() -> None:
    with pytest.raises(FrozenInstanceError):
        LocalLeap().radius = 5  # type: ignore[misc]  # the point of the test
