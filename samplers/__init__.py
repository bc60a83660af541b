"""Unmasking samplers for masked-diffusion language models: small, pure, composable policies."""

from samplers.base import Decision, Sampler, State, View
from samplers.confidence_threshold import ConfidenceThreshold
from samplers.expression import parse_expression
from samplers.fixed_schedule import FixedSchedule

ALL_SAMPLERS: tuple[type[Sampler], ...] = (
    ConfidenceThreshold,
    FixedSchedule,
)


def parse(text: str) -> Sampler:
    """Builds the sampler that an expression such as `ConfidenceThreshold(0.9)` describes.

    The inverse of `repr`. The text is read from its syntax tree and never evaluated.

    Raises:
        ValueError: If the text does not describe a sampler.
    """
    sampler = parse_expression(text, {sampler.__name__: sampler for sampler in ALL_SAMPLERS})
    assert isinstance(sampler, Sampler)
    return sampler


__all__ = [
    "ALL_SAMPLERS",
    "ConfidenceThreshold",
    "Decision",
    "FixedSchedule",
    "Sampler",
    "State",
    "View",
    "parse",
]
