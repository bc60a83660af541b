"""Model families: from a checkpoint's config.json and tensor names to the network.

A new family is an entry of `DENSE` or `MIXTURES`. A family of a user's own is passed to
`load_model`, or named with its module; docs/extending.md has a recipe.
"""

import importlib

from dllm_decode.models.families.base import CheckpointFacts, Family, Refusal
from dllm_decode.models.families.dense import DENSE
from dllm_decode.models.families.llada import LLADA
from dllm_decode.models.families.mixtures import MIXTURES
from dllm_decode.models.families.reader import Config
from samplers.checks import shown

__all__ = ["FAMILIES", "LLADA", "CheckpointFacts", "Config", "Family", "Refusal", "family_of"]

FAMILIES = {"llada": LLADA} | DENSE | MIXTURES
"""All families, by the names that `load_model(..., family=...)` takes."""


def family_of(
    config: Config, family: str | Family | None = None, *, file: str = "config.json"
) -> Family:
    """Picks the family that a caller names or passes, else by `architectures[0]`.

    Args:
        config: The whole config.json.
        family: A name of `FAMILIES`, or "my_package.my_module:MY_FAMILY", which imports the module,
            or a family; then config.json need not say. `None`: the one that config.json names.
        file: Named in errors.

    Raises:
        ValueError: If there is no such family, or config.json names another architecture.
    """
    named = config.get("architectures")
    architecture = named[0] if isinstance(named, list) and named else None
    if family is None:
        return _recognised(architecture, file)
    if not isinstance(family, str | Family):
        raise ValueError(f"family must be a name or a Family, got {shown(family)}.")
    found = _named(family) if isinstance(family, str) else family
    if named and found.architecture != architecture:
        raise ValueError(
            f"{file}: 'architectures' of a {found.name} checkpoint must be {[found.architecture]}, "
            f"or be left out, got {named!r}. Choose another family or checkpoint; or leave family "
            "out, and config.json decides."
        )
    return found


def _named(name: str) -> Family:
    if name in FAMILIES:
        return FAMILIES[name]
    module, colon, variable = name.partition(":")
    if not colon:
        raise ValueError(
            f"family must be one of {', '.join(FAMILIES)}, or one of your own with its module, "
            f"such as 'my_module:MY_FAMILY', got {name!r}."
        )
    try:
        found = vars(importlib.import_module(module)).get(variable)
    except (ImportError, ValueError) as error:
        raise ValueError(
            f"The module of the family {name!r} must be importable, got {error}. Install its "
            "package, or run in the folder that holds it."
        ) from error
    if not isinstance(found, Family):
        got = "nothing of this name" if found is None else f"a {type(found).__name__}"
        raise ValueError(f"{name!r} must be a Family, got {got}.")
    return found


def _recognised(architecture: object, file: str) -> Family:
    supported = []
    for family in FAMILIES.values():
        if family.is_named_by_caller:
            continue
        if family.architecture == architecture:
            return family
        supported.append(f"{family.architecture} ({family.name})")
    remedy = (
        "Choose a checkpoint of one of these families, name its family, or pass a family of your "
        "own (docs/extending.md)."
    )
    asked_for = [key for key, one in FAMILIES.items() if one.architecture == architecture]
    if asked_for:
        names = " or ".join(map(repr, asked_for))
        remedy = f"If it is a diffusion model all the same, name its family: family={names}."
    raise ValueError(
        f"{file} must name a supported architecture ({', '.join(supported)}) in 'architectures', "
        f"got {architecture!r}. {remedy}"
    )
