"""The tiny official checkpoints, one of each family: the one list that all tests take theirs from.

A new family needs a folder in golden/data/models, and a line in `OPTIONS` where its config.json
does not say everything.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

from dllm_decode.models import MaskedTransformer, load_model
from dllm_decode.models.families import FAMILIES as REGISTERED
from dllm_decode.models.network.config import NetworkConfig

MODELS = Path(__file__).parent / "golden" / "data" / "models"
MASK = {"mask_id": 508}
# What must be told, as a user of the real checkpoint must, or has a default that is too large here.
OPTIONS: dict[str, dict[str, Any]] = {
    "a2d_llama": MASK,
    "a2d_qwen2": MASK,
    "a2d_qwen3": MASK,
    "fast_dllm_v2": MASK,
    "llada2_moe": MASK | {"block_length": 8},
    "llada_moe": MASK,
    "open_dllm": MASK | {"family": "open_dllm"},
    "sdar_moe": MASK,
    "stable_diffcoder": MASK,
}
EVERY_FAMILY = tuple(REGISTERED)

load_without_tokenizer = partial(load_model, tokenizer="optional")
"""`load_model` of what has no tokenizer files: the tiny checkpoints, and what tests write."""


def load_tiny(key: str, /, **options: Any) -> MaskedTransformer:
    """Loads the tiny checkpoint of a family, with options of `load_model`."""
    model: MaskedTransformer
    model, _ = load_without_tokenizer(
        MODELS / key, **{"device": "cpu", **OPTIONS.get(key, {}), **options}
    )
    return model


def shape_of(key: str) -> NetworkConfig:
    """Reads the sizes and switches of the tiny checkpoint of a family."""
    told = {name: value for name, value in OPTIONS.get(key, {}).items() if name != "family"}
    config = json.loads((MODELS / key / "config.json").read_text())
    return REGISTERED[key].read(config, **told).shape


def _one_of_each_kind() -> tuple[str, ...]:
    """What the engine can tell apart: shifted or not, block-causal or not."""
    kinds: dict[tuple[int, bool], str] = {}
    for key, family in REGISTERED.items():
        kinds.setdefault((family.logit_shift, family.block_length > 0), key)
    return tuple(kinds.values())


FAMILIES = _one_of_each_kind()
"""One family of each kind, for laws that are too long for all of them."""
BIDIRECTIONAL = next(key for key in FAMILIES if not REGISTERED[key].block_length)
BLOCK_CAUSAL = next(key for key in FAMILIES if REGISTERED[key].block_length)
FULLY_CONFIGURED = tuple(family for family in FAMILIES if family not in OPTIONS)
"""Those of them whose folder alone is enough to load them."""
LAW_OPTIONS: dict[str, dict[str, Any]] = {
    key: OPTIONS.get(key, {}) | ({"block_length": 4} if family.block_length else {})
    for key, family in REGISTERED.items()
}
"""As `OPTIONS`, with blocks of four tokens where they are of a fixed length."""
