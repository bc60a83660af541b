"""Each sampler refuses settings outside their range, in one sentence with the value."""

import math
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError

import jaxtyping
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

NAN = math.nan
REFUSED: list[tuple[Callable[[], Sampler], str]] = [
    (lambda: ConfidenceThreshold(1.5), "threshold must be a probability in [0, 1], got 1.5."),
    (lambda: ConfidenceThreshold(NAN), "threshold must be a probability in [0, 1], got nan."),
    (lambda: ConfidenceThreshold("a"), "threshold must be a probability in [0, 1], got 'a'."),
    (lambda: ConfidenceThreshold(True), "threshold must be a probability in [0, 1], got True."),
    (lambda: EntropyBound(-0.1), "bound must be an entropy in nats of at least 0, got -0.1."),
    (lambda: EntropyBound(NAN), "bound must be an entropy in nats of at least 0, got nan."),
    (
        lambda: EntropyBound(order="random"),
        'order must be one of "entropy", "confidence", "margin", got \'random\'.',
    ),
    (
        lambda: EntropyThreshold(-1.0),
        "threshold must be an entropy in nats of at least 0, got -1.0.",
    ),
    (lambda: EntropyThreshold(NAN), "threshold must be an entropy in nats of at least 0, got nan."),
    (lambda: Factor(-1.0), "factor must be a number of at least 0, got -1.0."),
    (lambda: Factor(NAN), "factor must be a number of at least 0, got nan."),
    (
        lambda: Factor(variant="strict"),
        'variant must be one of "paper", "inclusive", "official", got \'strict\'.',
    ),
    (lambda: FixedSchedule(0), "steps_per_block must be a whole number, at least 1, got 0."),
    (lambda: FixedSchedule(2.5), "steps_per_block must be a whole number, at least 1, got 2.5."),
    (
        lambda: FixedSchedule(True),
        "steps_per_block must be a whole number, at least 1, got True.",
    ),
    (lambda: Frechet(1.5), "margin must be a number of at most 1, got 1.5."),
    (lambda: Frechet(NAN), "margin must be a number of at most 1, got nan."),
    (lambda: Hierarchy(-0.1), "low_threshold must be a probability in [0, 1], got -0.1."),
    (lambda: Hierarchy(0.4, 1.1), "high_threshold must be a probability in [0, 1], got 1.1."),
    (lambda: Klass(2.0), "threshold must be a probability in [0, 1], got 2.0."),
    (
        lambda: Klass(0.9, -0.1),
        "kl_threshold must be a divergence in nats of at least 0, got -0.1.",
    ),
    (lambda: Klass(0.9, 0.1, 0), "num_stable_steps must be a whole number, at least 1, got 0."),
    (
        lambda: Klass(steps_per_block=0),
        "steps_per_block must be a whole number, at least 1, got 0.",
    ),
    (lambda: Less(2.0), "threshold must be a probability in [0, 1], got 2.0."),
    (
        lambda: Less(0.9, -0.1),
        "drift_threshold must be a divergence in nats of at least 0, got -0.1.",
    ),
    (lambda: Less(0.9, 0.1, 0), "num_stable_steps must be a whole number, at least 1, got 0."),
    (lambda: Less(steps_per_block=0), "steps_per_block must be a whole number, at least 1, got 0."),
    (lambda: LocalLeap(1.1), "threshold must be a probability in [0, 1], got 1.1."),
    (
        lambda: LocalLeap(0.9, 0.95),
        "relaxed_threshold must be a probability in [0, threshold=0.9], got 0.95.",
    ),
    (
        lambda: LocalLeap(radius=-1),
        "radius must be a whole number of positions, at least 0, got -1.",
    ),
]


@pytest.mark.parametrize(("construct", "message"), REFUSED, ids=[text for _, text in REFUSED])
def test_a_setting_outside_its_range_is_refused(
    construct: Callable[[], Sampler], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The checks of types would refuse some of these first.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
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
