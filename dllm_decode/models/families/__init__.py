"""Model families: from a checkpoint's config.json and tensor names to the network.

A new family is an entry of `DENSE` or `MIXTURES`. A family of a user's own is passed to
`load_model`, or named with its module; docs/extending.md has a recipe.
"""

from pkgutil import resolve_name

from dllm_decode.models.families.base import CheckpointFacts, Family, Refusal
from dllm_decode.models.families.dense import DENSE
from dllm_decode.models.families.llada import LLADA
from dllm_decode.models.families.mixtures import MIXTURES
from dllm_decode.models.families.reader import Config
from samplers.checks import shown

__all__ = ["FAMILIES", "LLADA", "CheckpointFacts", "Config", "Family", "Refusal", "family_of"]

FAMILIES = {"llada": LLADA} | DENSE | MIXTURES
"""All families, by the names that `load_model(..., family=...)` takes."""


_NOT_IMPLEMENTED = {
    "WeDLMForCausalLM": (
        "A mask of WeDLM sees only the columns before it, so that its authors move committed "
        "tokens in front of masks in every forward, which is not implemented. Its weights are "
        "those of a Qwen2.5 or Qwen3."
    ),
    "SumiForMaskGeneration": (
        "Sumi is a uniform-state model without canvases, which is not implemented; of such models "
        "DiffusionGemma is."
    ),
}
"""Architectures of published checkpoints that are known and refused, each with the reason."""


def family_of(
    config: Config, family: str | Family | None = None, *, file: str = "config.json"
) -> Family:
    """Returns the family that a caller names or passes; otherwise that of `architectures[0]`.

    Args:
        config: The whole config.json.
        family: A name of `FAMILIES`, or "my_package.my_module:MY_FAMILY", which imports the module,
            or a family; then config.json need not name one. `None`: the one that config.json names.
        file: Named in errors.

    Raises:
        ValueError: If there is no such family, or config.json names another architecture.
    """
    listed = config.get("architectures")
    architecture = listed[0] if isinstance(listed, list) and listed else None
    if family is None:
        return _recognise(architecture, file)
    if not isinstance(family, str | Family):
        raise ValueError(f"family must be a name or a Family, got {shown(family)}.")
    chosen = _family_named(family) if isinstance(family, str) else family
    if listed and chosen.architecture != architecture:
        raise ValueError(
            f"{file}: 'architectures' of a {chosen.name} checkpoint must be "
            f"{[chosen.architecture]}, or be left out, got {listed!r}. Choose another family or "
            "checkpoint; or leave family out, and config.json decides."
        )
    return chosen


def _family_named(name: str) -> Family:
    """Returns the family of a name, which may be one of the caller's own, MODULE:NAME."""
    if name in FAMILIES:
        return FAMILIES[name]
    if ":" not in name:
        raise ValueError(
            f"family must be one of {', '.join(FAMILIES)}, or one of your own with its module, "
            f"such as 'my_module:MY_FAMILY', got {name!r}."
        )
    try:
        loaded = resolve_name(name)
    except (AttributeError, ImportError, ValueError) as error:
        raise ValueError(
            f"The family {name!r} must be importable, got {error}. Install its package, or run in "
            "the folder that holds it."
        ) from error
    if not isinstance(loaded, Family):
        raise ValueError(f"{name!r} must be a Family, got a {type(loaded).__name__}.")
    return loaded


def _recognise(architecture: object, file: str) -> Family:
    """Returns the family of an architecture, unless only the caller may name this family."""
    supported = []
    remedy = _NOT_IMPLEMENTED.get(
        str(architecture),
        "Choose a checkpoint of one of these families, name its family, or pass a family of your "
        "own (docs/extending.md).",
    )
    for key, family in FAMILIES.items():
        is_of_family = family.architecture == architecture
        if family.is_named_by_caller and is_of_family:
            remedy = f"If it is a diffusion model all the same, name its family: family={key!r}."
        elif is_of_family:
            return family
        elif not family.is_named_by_caller:
            supported.append(f"{family.architecture} ({family.name})")
    raise ValueError(
        f"{file} must name a supported architecture ({', '.join(supported)}) in 'architectures', "
        f"got {architecture!r}. {remedy}"
    )
