"""LoRA adapters in PEFT's format, merged into the weights at load.

Source: Hu et al. 2021, "LoRA", https://arxiv.org/abs/2106.09685; the scale of `use_rslora`:
Kalajdzievski 2023, https://arxiv.org/abs/2312.03732.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dllm_decode.models.loading.weights import check_finite, read_json

_CONFIG = "adapter_config.json"
_PREFIX = "base_model.model."
# Older versions of PEFT wrote the adapter's name, too.
_NAME = re.compile(r"(?P<module>.+)\.lora_(?P<factor>[AB])(\.default)?\.weight")
# Keys whose other values change what is added, and the values that change nothing.
_PLAIN: dict[str, tuple[object, ...]] = {
    "bias": ("none", None),
    "fan_in_fan_out": (False, None),
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
    "layer_replication": (None,),
    "lora_bias": (False, None),
    "modules_to_save": (None, []),
    "peft_type": ("LORA",),
    "target_parameters": (None, []),
    "trainable_token_indices": (None,),
    "use_dora": (False, None),
    "use_qalora": (False, None),
}


class Factors(NamedTuple):
    """What is added to a matrix: `scale * up @ down`."""

    down: Float[Tensor, "r I"]
    up: Float[Tensor, "O r"]
    scale: float


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter.

    Attributes:
        path: Its file of weights.
        factors: By the official name of the matrix that they are added to.
        targets: Names of modules that it was trained for; () if it names them by a pattern.
        is_partial: It was trained for some layers only.
    """

    path: Path
    factors: Mapping[str, Factors]
    targets: tuple[str, ...]
    is_partial: bool

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that it was read from."""
        return (self.path.with_name(_CONFIG), self.path)

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Compares it with the matrices of a model, which may still be on the meta device.

        Raises:
            ValueError: If it is for another model, or incomplete.
        """
        problems = [f"no {name} to add to" for name in self.factors if name not in tensors]
        for name, (down, up, _) in self.factors.items():
            shape = (up.shape[0], down.shape[1])
            if name in tensors and tensors[name].shape != shape:
                problems.append(
                    f"{name} of shape {list(tensors[name].shape)} instead of {list(shape)}"
                )
        for target in self.targets:
            named = [name for name in tensors if _is_of(name, target)]
            if not named:
                problems.append(f"no module {target!r}, which target_modules names")
            elif not self.is_partial:
                problems += [f"nothing for {name}" for name in named if name not in self.factors]
        if problems:
            raise ValueError(
                f"An adapter must fit its base model, got {str(self.path)!r} with {len(problems)} "
                f"differences: {'; '.join(problems[:8])}. Load it with the base that "
                "adapter_config.json names."
            )


def read_adapter(folder: Path) -> Adapter:
    """Reads a folder that PEFT's `save_pretrained` wrote.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If a file is damaged, or the adapter is of a kind that is not merged.
    """
    config_path, path = folder / _CONFIG, folder / "adapter_model.safetensors"
    config = read_json(config_path)
    for key, allowed in _PLAIN.items():
        if config.get(key, allowed[0]) not in allowed:
            raise ValueError(
                f"{str(config_path)!r}: {key!r} must be {allowed[0]!r} for an adapter that is "
                f"merged, got {config[key]!r}. Merge it with PEFT, and load the result."
            )
    if not path.is_file():
        raise FileNotFoundError(
            f"An adapter folder must hold an {path.name}, got {str(folder)!r} without one."
        )
    factors = {
        name: Factors(down, up, _scale(config, config_path, name, rank=down.shape[0]))
        for name, (down, up) in _pairs(path).items()
    }
    targets = config.get("target_modules")
    is_partial = config.get("layers_to_transform") is not None or bool(
        config.get("exclude_modules")
    )
    return Adapter(path, factors, tuple(targets) if isinstance(targets, list) else (), is_partial)


def merge_adapter(adapter: Adapter, tensors: Mapping[str, Tensor]) -> None:
    """Adds an adapter to the matrices of a filled model, in float32 and in place."""
    for name, (down, up, scale) in adapter.factors.items():
        matrix = tensors[name]
        wide = torch.promote_types(matrix.dtype, torch.float32)
        added = scale * (up.to(matrix.device, wide) @ down.to(matrix.device, wide))
        matrix.copy_(matrix.to(wide) + added)
        check_finite(matrix, name, adapter.path)


def _pairs(path: Path) -> dict[str, tuple[Tensor, Tensor]]:
    found: dict[str, dict[str, Tensor]] = {}
    try:
        with safe_open(path, framework="pt", device="cpu") as opened:
            for key in opened.keys():  # noqa: SIM118 - it is no dict
                matched = _NAME.fullmatch(key.removeprefix(_PREFIX))
                if matched is None:
                    raise ValueError(
                        f"{str(path)!r} must hold lora_A and lora_B of linear maps only, got "
                        f"{key}. Merge it with PEFT, and load the result."
                    )
                part = opened.get_tensor(key)
                check_finite(part, key, path)
                found.setdefault(f"{matched['module']}.weight", {})[matched["factor"]] = part
    except SafetensorError as error:
        raise ValueError(
            f"{str(path)!r} is damaged or cut short ({error}). Download the file again."
        ) from error
    odd = [name for name, pair in found.items() if len(pair) < 2 or not _fit(pair["A"], pair["B"])]
    if odd or not found:
        raise ValueError(
            f"{str(path)!r} must hold a lora_A of shape [r, in] and a lora_B of shape [out, r] for "
            f"each matrix, got {', '.join(odd) or 'none'}. Download the file again."
        )
    return {name: (pair["A"], pair["B"]) for name, pair in found.items()}


def _fit(down: Tensor, up: Tensor) -> bool:
    return down.dim() == up.dim() == 2 and len(down) == up.shape[1]


def _scale(config: Mapping[str, Any], path: Path, name: str, *, rank: int) -> float:
    """Returns alpha / r, or alpha / sqrt(r); patterns override both for some modules."""
    module = name.removesuffix(".weight")
    stated = _of_pattern(config, "rank_pattern", module, config.get("r"))
    alpha = _of_pattern(config, "alpha_pattern", module, config.get("lora_alpha"))
    if stated != rank:
        raise ValueError(
            f"{str(path)!r}: the rank of {module} must be that of its weights, {rank}, got "
            f"{stated!r}."
        )
    if type(alpha) not in (int, float) or not 0 < alpha < float("inf"):
        raise ValueError(f"{str(path)!r}: 'lora_alpha' must be a positive number, got {alpha!r}.")
    return float(alpha) / (rank**0.5 if config.get("use_rslora") else rank)


def _of_pattern(config: Mapping[str, Any], key: str, module: str, default: Any) -> Any:
    patterns = config.get(key) or {}
    for pattern, value in patterns.items():
        if re.fullmatch(rf"(.*\.)?({pattern})", module):
            return value
    return default


def _is_of(name: str, target: str) -> bool:
    module = name.removesuffix(".weight")
    return name.endswith(".weight") and (module == target or module.endswith(f".{target}"))
