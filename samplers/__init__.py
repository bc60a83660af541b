"""Unmasking samplers for masked-diffusion language models: small, pure, composable policies."""

from samplers.base import Decision, Sampler, State
from samplers.confidence_threshold import ConfidenceThreshold
from samplers.credit_decoding import CreditDecoding
from samplers.entropy_bound import EntropyBound
from samplers.entropy_threshold import EntropyThreshold
from samplers.expression import parse_expression
from samplers.factor import Factor
from samplers.fixed_schedule import FixedSchedule
from samplers.frechet import Frechet
from samplers.hierarchy import Hierarchy
from samplers.klass import Klass
from samplers.learn2pd import Learn2PD
from samplers.less import Less
from samplers.local_leap import LocalLeap
from samplers.prophet import Prophet
from samplers.view import View
from samplers.wino import Wino

ALL_SAMPLERS: tuple[type[Sampler], ...] = (
    ConfidenceThreshold,
    CreditDecoding,
    EntropyBound,
    EntropyThreshold,
    Factor,
    FixedSchedule,
    Frechet,
    Hierarchy,
    Klass,
    Learn2PD,
    Less,
    LocalLeap,
    Prophet,
    Wino,
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
    "CreditDecoding",
    "Decision",
    "EntropyBound",
    "EntropyThreshold",
    "Factor",
    "FixedSchedule",
    "Frechet",
    "Hierarchy",
    "Klass",
    "Learn2PD",
    "Less",
    "LocalLeap",
    "Prophet",
    "Sampler",
    "State",
    "View",
    "Wino",
    "parse",
]
