"""Checks of what plug-ins say of themselves, before the first step."""

import inspect
from typing import Any, get_args

from samplers.base import Sampler
from samplers.checks import shown
from samplers.facts import Fact, PlugIn, plugins_within
from samplers.view import Scope


def require_declared(sampler: Sampler, *others: PlugIn) -> None:
    """Raises ValueError unless plug-ins are frozen dataclasses that declare facts and scope."""
    for part in plugins_within((sampler, *others)):
        if isinstance(part, PlugIn):
            _require_dataclass(type(part))
    for plugin in (sampler, *others):
        for name, facts in (("needs", plugin.needs), ("gives", plugin.gives)):
            if not isinstance(facts, frozenset) or not all(isinstance(f, Fact) for f in facts):
                raise ValueError(
                    f"{name} of {plugin!r} must be a property with a frozenset of Fact, got "
                    f"{shown(facts)}."
                )
    if sampler.scope not in get_args(Scope):
        raise ValueError(
            f"scope of {sampler!r} must be one of {', '.join(get_args(Scope))}, got "
            f"{shown(sampler.scope)}."
        )


def _require_dataclass(kind: type[PlugIn]) -> None:
    """Raises ValueError unless a plug-in's class is a frozen dataclass with all of its fields."""
    params: Any = getattr(kind, "__dataclass_params__", None)
    has_lost_fields = "__dataclass_params__" not in vars(kind) and inspect.get_annotations(kind)
    if params is None or not params.frozen or has_lost_fields:
        raise ValueError(
            f"{kind.__name__} must be a frozen dataclass, whose fields name it in records: write "
            "@dataclass(frozen=True) above the class."
        )
