"""Chooses the devices that compute each part of a model and that hold its weights."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dllm_decode.models.network.config import NetworkConfig
from dllm_decode.models.network.transformer import Transformer

Device: TypeAlias = str | int | torch.device
DeviceMap: TypeAlias = Mapping[str, Device]
"""Devices by name of a part, such as "layers.0", or of several, such as "layers" or ""."""

_DISK = "disk"
# Share of a device's memory for weights, without limits; the rest is for keys, values, logits.
_SHARE = 0.9


@dataclass(frozen=True)
class Placement:
    """Where the parts of a model are.

    Attributes:
        kept: Where each part's weights are; `None`: in files.
        computed: Where each part is computed; weights kept elsewhere are moved there for that time.
        folder: Folder of the weight files.
    """

    kept: Mapping[str, torch.device | None]
    computed: Mapping[str, torch.device]
    folder: Path | None = None


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


def chosen_device(device: Device | DeviceMap | None) -> Device | DeviceMap:
    """Returns the device if it is not `None`; else "auto" with CUDA, which is logged, or "cpu"."""
    if device is not None:
        return device
    if not torch.cuda.is_available():
        return "cpu"
    _tell_of_cuda()
    return "auto"


@cache
def _tell_of_cuda() -> None:
    logging.getLogger("dllm_decode").warning(
        "Models are loaded onto %s; pass device='cpu' to load_model for the CPU.",
        torch.cuda.get_device_name(),
    )


def check_devices(device: Device | DeviceMap) -> None:
    """Raises ValueError if a device is not available; called before anything is downloaded."""
    for name in set(device.values() if isinstance(device, Mapping) else [device]):
        if name not in ("auto", _DISK):
            available(name)


def place(
    transformer: Transformer,
    device: Device | DeviceMap,
    *,
    max_memory: Mapping[int | str, int | str] | None = None,
    offload_folder: str | Path | None = None,
) -> Placement:
    """Decides where the parts of a model on the meta device go; see `load_model`."""
    if max_memory is not None and device != "auto":
        raise ValueError(
            f"max_memory sets limits for device='auto', got device={device!r}. Leave one out."
        )
    if device == "auto":
        device = _inferred(transformer, max_memory)
    device_names = _by_part(transformer, device if isinstance(device, Mapping) else {"": device})
    devices = {name: available(name) for name in set(device_names.values()) - {_DISK}}
    kept = {part: devices.get(name) for part, name in device_names.items()}
    if None in kept.values() and offload_folder is None:
        parts = ", ".join(part for part, place in kept.items() if place is None)
        raise ValueError(
            f"Weights that fit on no device go to files, got no folder for those of {parts}. "
            "Pass offload_folder, or allow the devices more memory."
        )
    computed = _computed(kept)
    if transformer.config.tied_head and kept["embedding"] != computed["embedding"]:
        raise ValueError(
            f"The embedding of this model is its head too, so it stays where it is computed, on "
            f"{computed['embedding']}, got {device_names['embedding']!r}. Change the device map."
        )
    return Placement(kept, computed, None if offload_folder is None else Path(offload_folder))


def _computed(kept: Mapping[str, torch.device | None]) -> dict[str, torch.device]:
    """Returns where each part is computed: its accelerator, or else the first one, or the CPU."""
    accelerators = [device for device in kept.values() if device and device.type != "cpu"]
    main = accelerators[0] if accelerators else torch.device("cpu")
    return {part: device if device in accelerators else main for part, device in kept.items()}


def available(device: Device) -> torch.device:
    """Returns a device; ValueError if it is not available."""
    try:
        resolved = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(
            f"A device must be one that this torch can use, such as 'cpu' or 'cuda', got "
            f"{device!r} ({str(error).splitlines()[0]}). Choose 'cpu', or install torch for that "
            "device."
        ) from None
    if resolved.type == "meta":
        raise ValueError("A device must hold values, got 'meta', which does not. Choose 'cpu'.")
    return resolved


def only_device(placement: Placement) -> torch.device:
    """Returns the only device of a model to be quantised; ValueError if there are several."""
    devices = set(placement.kept.values())
    (first, *others) = devices
    if first is None or others:
        names = ", ".join(sorted("files" if device is None else str(device) for device in devices))
        raise ValueError(
            f"A quantised model must be on one device, got a map to {names}. Name one device, "
            "or leave quantize out."
        )
    return first


def allocate(transformer: Transformer, placement: Placement) -> None:
    """Allocates a model that is on the meta device, part by part, without filling it."""
    for part, device in placement.kept.items():
        module = transformer.get_submodule(part)
        if device is not None:
            empty(module, device)
        else:
            assert placement.folder is not None
            placement.folder.mkdir(parents=True, exist_ok=True)
            _map_files(module, placement.folder / part)


def empty(module: nn.Module, device: str | torch.device) -> None:
    """Allocates parameters that are on the meta device; `to_empty` would import sympy."""
    _replace(
        module,
        lambda _, meta: torch.empty(meta.shape, dtype=meta.dtype, device=device),
    )


def dispatch(transformer: Transformer, placement: Placement) -> None:
    """Sets up a filled model to move activations between devices, and weights kept elsewhere."""
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module

    for part, device in placement.kept.items():
        if device != placement.computed[part]:
            hook = AlignDevicesHook(placement.computed[part], offload=True, place_submodules=True)
            add_hook_to_module(transformer.get_submodule(part), hook)
    is_spread = set(placement.kept.values()) != {placement.computed["embedding"]}
    transformer.route = placement.computed if is_spread else None


def _inferred(
    transformer: Transformer, max_memory: Mapping[int | str, int | str] | None
) -> DeviceMap:
    from accelerate import infer_auto_device_map
    from accelerate.utils import get_max_memory

    if max_memory is None:
        limits = {name: int(_SHARE * limit) for name, limit in get_max_memory().items()}
    else:
        limits = get_max_memory(dict(max_memory))
    device_map: DeviceMap = infer_auto_device_map(
        transformer, limits, no_split_module_classes=["Layer"]
    )
    return device_map


def _by_part(transformer: Transformer, device_map: DeviceMap) -> dict[str, Device]:
    """Returns the device of each part: that of the longest prefix in the map."""
    parts = ["embedding", *(f"layers.{i}" for i in range(transformer.config.num_layers)), "norm"]
    parts += [] if transformer.config.tied_head else ["lm_head"]
    allowed = {"", "layers", *parts}
    unknown = [name for name in device_map if name not in allowed]
    if unknown:
        raise ValueError(
            f"A device map has the names {', '.join(parts)}, 'layers' for all layers and '' for "
            f"the rest, got {', '.join(map(repr, unknown))}. A layer stays in one place."
        )
    devices: dict[str, Device] = {}
    for part in parts:
        names = [name for name in (part, part.partition(".")[0], "") if name in device_map]
        if not names:
            raise ValueError(
                f"A device map has a place for every part, got none for {part}. Add it, or '' for "
                "the rest."
            )
        devices[part] = device_map[names[0]]
    return devices


def _map_files(module: nn.Module, prefix: Path) -> None:
    def mapped(name: str, meta: Tensor) -> Tensor:
        file, size = f"{prefix}.{name}.bin", meta.numel()
        return torch.from_file(file, shared=True, size=size, dtype=meta.dtype).view(meta.shape)

    _replace(module, mapped)


def _replace(module: nn.Module, make: Callable[[str, Tensor], Tensor]) -> None:
    for name, parameter in list(module.named_parameters()):
        owner, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(owner), leaf, nn.Parameter(make(name, parameter)))
