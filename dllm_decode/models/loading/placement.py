"""Which device computes each part of a model, and where its weights are kept meanwhile."""

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
# The rest is left for keys, values and logits, where no limits are given.
_SHARE = 0.9


@dataclass(frozen=True)
class Placement:
    """Where the parts of a model are.

    Attributes:
        kept: Where each part's weights are; `None`: in files.
        computed: Where each part is computed; weights that are kept elsewhere come for that time.
        folder: Of the files.
    """

    kept: Mapping[str, torch.device | None]
    computed: Mapping[str, torch.device]
    folder: Path | None = None


class _Uninitialised(TorchFunctionMode):
    """Leaves out initial values, for which torch imports its compiler on the meta device."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def new_on_meta(config: NetworkConfig) -> Transformer:
    """Builds a network without memory."""
    with torch.device("meta"), _Uninitialised():
        return Transformer(config)


def chosen_device(device: Device | DeviceMap | None) -> Device | DeviceMap:
    """Returns a device that was named; else "auto" where there is CUDA, and logs that, or "cpu"."""
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
    """Raises ValueError if a device is named that is not there; before anything is downloaded."""
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
    named = _by_part(transformer, device if isinstance(device, Mapping) else {"": device})
    there = {name: available(name) for name in set(named.values()) - {_DISK}}
    kept = {part: there.get(name) for part, name in named.items()}
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
            f"{computed['embedding']}, got {named['embedding']!r}. Change the device map."
        )
    return Placement(kept, computed, None if offload_folder is None else Path(offload_folder))


def _computed(kept: Mapping[str, torch.device | None]) -> dict[str, torch.device]:
    """Computes on accelerators if there are any; what is kept elsewhere, on the first of them."""
    accelerators = [place for place in kept.values() if place and place.type != "cpu"]
    main = accelerators[0] if accelerators else torch.device("cpu")
    return {part: place if place in accelerators else main for part, place in kept.items()}


def available(device: Device) -> torch.device:
    """Returns a device, ValueError if it is not there."""
    try:
        found = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(
            f"A device must be one that this torch can use, such as 'cpu' or 'cuda', got "
            f"{device!r} ({str(error).splitlines()[0]}). Choose 'cpu', or install torch for that "
            "device."
        ) from None
    if found.type == "meta":
        raise ValueError("A device must hold values, got 'meta', which does not. Choose 'cpu'.")
    return found


def only_device(placement: Placement) -> torch.device:
    """Returns the device of a model that is to be stored otherwise, ValueError if it has more."""
    places = set(placement.kept.values())
    (first, *others) = places
    if first is None or others:
        named = ", ".join(sorted("files" if place is None else str(place) for place in places))
        raise ValueError(
            f"A quantised model must be on one device, got a map to {named}. Name one device, "
            "or leave quantize out."
        )
    return first


def allocate(transformer: Transformer, placement: Placement) -> None:
    """Turns a model on the meta device into one with memory, part by part, not yet filled."""
    for part, place in placement.kept.items():
        module = transformer.get_submodule(part)
        if place is not None:
            empty(module, place)
        else:
            assert placement.folder is not None
            placement.folder.mkdir(parents=True, exist_ok=True)
            _map_files(module, placement.folder / part)


def empty(module: nn.Module, device: str | torch.device) -> None:
    """Gives memory to parameters on the meta device; `to_empty` imports sympy for it."""
    _replace(
        module,
        lambda _, meta: torch.empty(meta.shape, dtype=meta.dtype, device=device),
    )


def dispatch(transformer: Transformer, placement: Placement) -> None:
    """Lets the parts of a filled model meet: activations move, and weights where they must."""
    from accelerate.hooks import AlignDevicesHook, add_hook_to_module

    for part, place in placement.kept.items():
        if place != placement.computed[part]:
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
    found: DeviceMap = infer_auto_device_map(transformer, limits, no_split_module_classes=["Layer"])
    return found


def _by_part(transformer: Transformer, device_map: DeviceMap) -> dict[str, Device]:
    """Resolves prefixes; the longest that names a part decides."""
    parts = ["embedding", *(f"layers.{i}" for i in range(transformer.config.num_layers)), "norm"]
    parts += [] if transformer.config.tied_head else ["lm_head"]
    known = {"", "layers", *parts}
    odd = [name for name in device_map if name not in known]
    if odd:
        raise ValueError(
            f"A device map has the names {', '.join(parts)}, 'layers' for all layers and '' for "
            f"the rest, got {', '.join(map(repr, odd))}. A layer stays in one place."
        )
    named: dict[str, Device] = {}
    for part in parts:
        names = [name for name in (part, part.partition(".")[0], "") if name in device_map]
        if not names:
            raise ValueError(
                f"A device map has a place for every part, got none for {part}. Add it, or '' for "
                "the rest."
            )
        named[part] = device_map[names[0]]
    return named


def _map_files(module: nn.Module, prefix: Path) -> None:
    def mapped(name: str, meta: Tensor) -> Tensor:
        file, size = f"{prefix}.{name}.bin", meta.numel()
        return torch.from_file(file, shared=True, size=size, dtype=meta.dtype).view(meta.shape)

    _replace(module, mapped)


def _replace(module: nn.Module, made: Callable[[str, Tensor], Tensor]) -> None:
    for name, parameter in list(module.named_parameters()):
        owner, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(owner), leaf, nn.Parameter(made(name, parameter)))
