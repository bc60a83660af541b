"""Chooses the device of each part of a model, and allocates weights there."""

import logging
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from dllm_decode.models.network.config import NetworkConfig
from dllm_decode.models.network.transformer import Transformer
from samplers.checks import shown

Device: TypeAlias = str | int | torch.device

# Share of a device's free memory for weights; the rest is for keys, values, logits.
_SHARE = 0.9


class _Uninitialised(TorchFunctionMode):
    """Skips initial values, for which torch would import its compiler on the meta device."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def new_on_meta(config: NetworkConfig) -> Transformer:
    """Builds a network on the meta device, without memory."""
    with torch.device("meta"), _Uninitialised():
        return Transformer(config)


def chosen_device(device: Device | None) -> Device:
    """Returns the device if it is not `None`; else "auto" with CUDA, which is logged, or "cpu".

    Raises:
        ValueError: If the device is not available; before anything is downloaded.
    """
    if isinstance(device, Mapping):
        raise ValueError(
            f"device must be one device, or 'auto' for all accelerators, got {shown(device)}: "
            "parts of a model have no device of their own."
        )
    if device is None and torch.cuda.is_available():
        _tell_of_cuda()
        return "auto"
    device = "cpu" if device is None else device
    if device != "auto":
        available(device)
    return device


@cache
def _tell_of_cuda() -> None:
    logging.getLogger("dllm_decode").warning(
        "Models are loaded onto %s; pass device='cpu' to load_model for the CPU.",
        torch.cuda.get_device_name(),
    )


def place(transformer: Transformer, device: Device) -> dict[str, torch.device]:
    """Returns the device of each part of a model on the meta device; see `load_model`."""
    parts = ["embedding", *(f"layers.{i}" for i in range(transformer.config.num_layers)), "norm"]
    parts += [] if transformer.config.tied_head else ["lm_head"]
    devices = _inferred(transformer) if device == "auto" else {"": device}
    placed: dict[str, Device] = {}
    for part in parts:
        name = next(name for name in (part, part.partition(".")[0], "") if name in devices)
        placed[part] = devices[name]
    if left := [part for part, where in placed.items() if where == "disk"]:
        raise ValueError(
            f"The accelerators, or the CPU if there is none, must have room for all weights, got "
            f"none for {', '.join(left)}. Pass a smaller dtype, device='cpu', or device='cuda' "
            "with quantize='int8'."
        )
    resolved = {where: available(where) for where in {*placed.values()}}
    return {part: resolved[where] for part, where in placed.items()}


def available(device: Device) -> torch.device:
    """Returns a device; ValueError if it is not available."""
    try:
        resolved = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0]
        if reason.startswith("Expected one of"):
            # Torch lists every kind of device that it was ever built for.
            reason = "torch has no device of this name"
        raise ValueError(
            f"A device must be one that this torch can use, such as 'cpu' or 'cuda', got "
            f"{device!r} ({reason}). Choose 'cpu', or install torch for that "
            "device."
        ) from None
    if resolved.type == "meta":
        raise ValueError("A device must hold values, got 'meta', which does not. Choose 'cpu'.")
    return resolved


def only_device(placed: Mapping[str, torch.device]) -> torch.device:
    """Returns the only device of a model to be quantised; ValueError if there are several."""
    (first, *others) = {*placed.values()}
    if others:
        names = ", ".join(sorted({str(device) for device in placed.values()}))
        raise ValueError(
            f"A quantised model must be on one device, got {names}. Name one device, or leave "
            "quantize out."
        )
    return first


def allocate(transformer: Transformer, placed: Mapping[str, torch.device]) -> None:
    """Allocates a model that is on the meta device, part by part, without filling it."""
    for part, device in placed.items():
        empty(transformer.get_submodule(part), device)


def empty(module: nn.Module, device: str | torch.device) -> None:
    """Allocates parameters that are on the meta device; `to_empty` would import sympy."""
    for name, meta in list(module.named_parameters()):
        owner, _, leaf = name.rpartition(".")
        values = torch.empty(meta.shape, dtype=meta.dtype, device=device)
        setattr(module.get_submodule(owner), leaf, nn.Parameter(values))


def _inferred(transformer: Transformer) -> Mapping[str, Device]:
    """Returns a device by name of a part, or of several; "disk" for parts that fit nowhere."""
    from accelerate import infer_auto_device_map
    from accelerate.utils import get_max_memory

    limits = {name: int(_SHARE * limit) for name, limit in get_max_memory().items()}
    if len(limits) > 1:
        # Weights in the memory of the CPU would be copied to an accelerator in every forward.
        limits.pop("cpu", None)
    devices: Mapping[str, Device] = infer_auto_device_map(
        transformer, limits, no_split_module_classes=["Layer"]
    )
    return devices
