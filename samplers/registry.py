"""All samplers by name, and samplers from text: `LocalLeap(0.9)`, `my_module:MyRule(0.8)`."""

from inspect import isabstract

import samplers
from samplers.base import Sampler
from samplers.expression import parse_plugin
from samplers.facts import Fact

# The names that the package takes from this module.
_HERE = ("ALL_SAMPLERS", "parse")


def _exported_samplers() -> list[type[Sampler]]:
    """Returns the samplers that the package exports, by name; those for noise come last."""
    members = [getattr(samplers, name) for name in sorted(samplers.__all__) if name not in _HERE]
    found = [
        member
        for member in members
        if isinstance(member, type) and issubclass(member, Sampler) and not isabstract(member)
    ]
    return sorted(found, key=lambda sampler: Fact.UNIFORM_STATE in sampler().needs)


ALL_SAMPLERS: tuple[type[Sampler], ...] = tuple(_exported_samplers())


def parse(text: str) -> Sampler:
    """Builds the sampler that an expression describes.

    For samplers of this package, such as `ConfidenceThreshold(0.9)`, it is the inverse of `repr`.
    `my_package.my_module:MarginThreshold(0.8)` imports that module and builds the user's own.
    A sampler may be an argument of another: `CreditDecoding(LocalLeap(radius=6))`.

    Raises:
        ValueError: If the text does not describe a sampler.
    """
    by_name = {sampler.__name__: sampler for sampler in ALL_SAMPLERS}
    return parse_plugin(text, Sampler, by_name)
