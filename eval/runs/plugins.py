"""Plug-ins by text, as the command line and sweep files name them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch

import dllm_decode
from dllm_decode import CachePolicy, CausalTarget, Verifier, blocks, verify
from dllm_decode.blocks import BlockSchedule
from samplers import Sampler, parse
from samplers.checks import shown
from samplers.expression import parse_plugin

TITLES = {"blocks": "block schedule"}
"""What messages call a part of a setting, where that is not its name."""


def parse_sampler(text: str) -> Sampler:
    """Builds a sampler from its repr, from "module:Class(...)", or from "@card.json".

    Raises:
        ValueError: If the text does not describe one.
    """
    return parse(_of_card(text[1:], "sampler") if text.startswith("@") else text)


def _of_card(path: str, part: str) -> str:
    """Returns the sampler, cache, verifier or block schedule that a card of `calibrate` certifies.

    Raises:
        ValueError: If the file is no such card.
    """
    try:
        written = json.loads(Path(path).read_text(encoding="utf-8"))
        # Cards of format 1 name no schedule.
        chosen = {"blocks": "Sequential()", **written["expressions"]}[part]
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(
            f"A {TITLES.get(part, part)} after @ must be named by a card that calibrate wrote, "
            f"got {shown(path)}."
        ) from None
    return str(chosen)


def parse_cache(text: str) -> CachePolicy:
    """Builds a cache policy from its repr.

    Raises:
        ValueError: If the text does not describe one.
    """
    text = _of_card(text[1:], "cache") if text.startswith("@") else text
    return parse_plugin(text, CachePolicy, _exported(CachePolicy))  # type: ignore[type-abstract]  # never constructed


def no_target(source: str) -> CausalTarget:
    """Refuses to load a target."""
    raise ValueError(f"Targets cannot be loaded here, got CausalTarget({source!r}).")


def parse_verifier(text: str, target: Callable[[str], CausalTarget] = no_target) -> Verifier:
    """Builds a verifier from its repr, such as `ARVerify(CausalTarget('mini-ar'))`.

    Args:
        text: The expression.
        target: Loads a target by embedded name, folder or hub id.

    Raises:
        ValueError: If the text does not describe a verifier.
    """
    text = _of_card(text[1:], "verifier") if text.startswith("@") else text
    known = {**{name: getattr(verify, name) for name in verify.__all__}, "CausalTarget": target}
    return parse_plugin(text, Verifier, known)  # type: ignore[type-abstract]  # never constructed


def check_verifier(text: str) -> str:
    """Reads a verifier as `parse_verifier` does, but loads no target.

    A mistyped expression is thus refused before a model is loaded.

    Returns:
        The verifier's repr.

    Raises:
        ValueError: If the text does not describe a verifier.
    """
    return repr(parse_verifier(text, _unloaded))


def _unloaded(source: str) -> CausalTarget:
    return CausalTarget.of_network(_Unloaded(), name=source, eos_ids=())


class _Unloaded:
    """Stands for the network of a target that is not loaded; it is never run."""

    vocab_size = 0
    takes_positions = True
    heeds_masks = True

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def read(self, *args: object, **options: object) -> NoReturn:
        raise NotImplementedError("This target is not loaded.")


def parse_blocks(text: str) -> BlockSchedule:
    """Builds a block schedule from its repr, such as `MultiBlock(32, open_at=0.5)`.

    Raises:
        ValueError: If the text does not describe one.
    """
    return blocks.parse(_of_card(text[1:], "blocks") if text.startswith("@") else text)


def _exported(base: type) -> dict[str, Callable[..., Any]]:
    exported = ((name, getattr(dllm_decode, name)) for name in dllm_decode.__all__)
    return {
        name: value
        for name, value in exported
        if isinstance(value, type) and issubclass(value, base) and value is not base
    }
