"""Model families: from a checkpoint's config.json and tensor names to the network.

A new family is a file beside this one, and a line in `FAMILIES`. One of a user's own is passed to
`load_model`, or named with its module; docs/extending.md has a recipe.
"""

import importlib

from dllm_decode.models.families.a2d_llama import A2D_LLAMA
from dllm_decode.models.families.a2d_qwen2 import A2D_QWEN2
from dllm_decode.models.families.a2d_qwen3 import A2D_QWEN3
from dllm_decode.models.families.base import CheckpointFacts, Family, Refusal
from dllm_decode.models.families.dream import DREAM
from dllm_decode.models.families.fast_dllm_v2 import FAST_DLLM_V2
from dllm_decode.models.families.llada import LLADA
from dllm_decode.models.families.llada2_moe import LLADA2_MOE
from dllm_decode.models.families.llada_moe import LLADA_MOE
from dllm_decode.models.families.nemotron_labs_diffusion import NEMOTRON_LABS_DIFFUSION
from dllm_decode.models.families.open_dllm import OPEN_DLLM
from dllm_decode.models.families.reader import Config
from dllm_decode.models.families.rnd1 import RND1
from dllm_decode.models.families.sdar import SDAR
from dllm_decode.models.families.sdar_moe import SDAR_MOE
from dllm_decode.models.families.stable_diffcoder import STABLE_DIFFCODER

__all__ = ["FAMILIES", "LLADA", "CheckpointFacts", "Config", "Family", "Refusal", "family_of"]

FAMILIES = {
    "llada": LLADA,
    "dream": DREAM,
    "sdar": SDAR,
    "llada_moe": LLADA_MOE,
    "llada2_moe": LLADA2_MOE,
    "sdar_moe": SDAR_MOE,
    "fast_dllm_v2": FAST_DLLM_V2,
    "a2d_qwen3": A2D_QWEN3,
    "a2d_qwen2": A2D_QWEN2,
    "a2d_llama": A2D_LLAMA,
    "stable_diffcoder": STABLE_DIFFCODER,
    "open_dllm": OPEN_DLLM,
    "rnd1": RND1,
    "nemotron_labs_diffusion": NEMOTRON_LABS_DIFFUSION,
}
"""All families, by the names that `load_model(..., family=...)` takes."""


def family_of(config: Config, family: str | Family | None = None) -> Family:
    """Picks the family that a caller names or passes, else by `architectures[0]`.

    Args:
        config: The whole config.json.
        family: A name of `FAMILIES`, or "my_package.my_module:MY_FAMILY", which imports the module,
            or a family; then config.json need not say. `None`: the one that config.json names.

    Raises:
        ValueError: If there is no such family, or config.json names another architecture.
    """
    named = config.get("architectures")
    architecture = named[0] if isinstance(named, list) and named else None
    if family is None:
        return _recognised(architecture)
    found = _named(family) if isinstance(family, str) else family
    if named and found.architecture != architecture:
        raise ValueError(
            f"'architectures' in config.json of a {found.name} checkpoint must be "
            f"{[found.architecture]}, or be left out, got {named!r}. Choose another family or "
            "checkpoint; or leave family out, and config.json decides."
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


def _recognised(architecture: object) -> Family:
    known = {key: one for key, one in FAMILIES.items() if one.architecture == architecture}
    for family in known.values():
        if not family.is_named_by_caller:
            return family
    supported = ", ".join(
        f"{family.architecture} ({family.name})"
        for family in FAMILIES.values()
        if not family.is_named_by_caller
    )
    remedy = (
        "Choose a checkpoint of one of these families, name its family, or pass a family of your "
        "own (docs/extending.md)."
    )
    if known:
        names = " or ".join(repr(key) for key in known)
        remedy = f"If it is a diffusion model all the same, name its family: family={names}."
    raise ValueError(
        f"config.json must name a supported architecture ({supported}) in 'architectures', got "
        f"{architecture!r}. {remedy}"
    )
