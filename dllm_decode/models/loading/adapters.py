"""LoRA adapters in PEFT's format, merged into the weights at load.

Source: Hu et al. 2021, "LoRA", https://arxiv.org/abs/2106.09685; the scale of `use_rslora`:
Kalajdzievski 2023, https://arxiv.org/abs/2312.03732.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from dllm_decode.core.files import finish_files
from dllm_decode.models.families.reader import ConfigReader, as_json
from dllm_decode.models.loading.json_files import read_json
from dllm_decode.models.loading.weights import open_weights, require_finite, require_float_storage

_CONFIG = "adapter_config.json"
_PREFIX = "base_model.model."
# Far above any alpha in use; a larger one gives infinite weights, whose error lacks its name.
_MOST_ALPHA = 1e6
# Older versions of PEFT wrote the adapter's name, too.
_NAME = re.compile(r"(?P<module>.+)\.lora_(?P<factor>[AB])(\.default)?\.weight")
# Keys that can change what is added, and their values that change nothing.
_PLAIN: dict[str, tuple[object, ...]] = {
    "alora_invocation_tokens": (None,),
    "alpha_pattern": ({}, None),
    "arrow_config": (None,),
    "bias": ("none",),
    "fan_in_fan_out": (False,),
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
    "kasa_config": (None,),
    "layer_replication": (None,),
    "lora_bias": (False,),
    "modules_to_save": (None, []),
    "monteclora_config": (None,),
    "peft_type": ("LORA",),
    "rank_pattern": ({}, None),
    "target_parameters": (None, []),
    "trainable_token_indices": (None,),
    "use_bdlora": (None, False),
    "use_dora": (False,),
    "use_qalora": (False,),
}


class Factors(NamedTuple):
    """`scale * up @ down` is added to a matrix."""

    down: Float[Tensor, "r I"]
    up: Float[Tensor, "O r"]
    scale: float


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter.

    Attributes:
        path: File of the adapter's weights.
        factors: Factors by the official name of the matrix that their product is added to.
        targets: Modules that must all have factors; () if some were left out of the training.
    """

    path: Path
    factors: Mapping[str, Factors]
    targets: tuple[str, ...]

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that the adapter was read from."""
        return (self.path.with_name(_CONFIG), self.path)

    def check(self, tensors: Mapping[str, Tensor]) -> None:
        """Raises ValueError if the adapter does not fit these matrices, or is incomplete."""
        problems = [f"no {name} to add to" for name in self.factors if name not in tensors]
        for name, (down, up, _) in self.factors.items():
            shape = (up.shape[0], down.shape[1])
            if name in tensors and tensors[name].shape != shape:
                problems.append(
                    f"{name} of shape {list(tensors[name].shape)} instead of {list(shape)}"
                )
        ends = tuple(f".{target}.weight" for target in self.targets)
        lacking = [name for name in tensors if name not in self.factors]
        problems += [f"nothing for {name}" for name in lacking if f".{name}".endswith(ends)]
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
    finish_files(folder)
    config_path, path = folder / _CONFIG, folder / "adapter_model.safetensors"
    config = ConfigReader(read_json(config_path), file=repr(str(config_path)))
    for key, allowed in _PLAIN.items():
        if not config.is_one_of(key, allowed):
            raise ValueError(
                f"{config.file}: {key!r} must be {as_json(allowed[0])} for an adapter that is "
                f"merged, got {as_json(config.value(key))}. Merge it with PEFT, and load the "
                "result."
            )
    if not path.is_file():
        raise FileNotFoundError(
            f"An adapter folder must hold an {path.name}, got {str(folder)!r} without one."
        )
    factors = {
        name: Factors(down, up, _scale(config, name, rank=down.shape[0]))
        for name, (down, up) in _factors_by_matrix(path).items()
    }
    is_partial = config.has("layers_to_transform") or bool(config.value("exclude_modules"))
    # A text is a pattern of names.
    named = config.value("target_modules")
    targets = tuple(named) if isinstance(named, list) and not is_partial else ()
    return Adapter(path, factors, targets)


def merge_adapter(adapter: Adapter, tensors: Mapping[str, Tensor]) -> None:
    """Adds an adapter to the matrices of a filled model, in float32 and in place."""
    for name, (down, up, scale) in adapter.factors.items():
        matrix = tensors[name]
        wide = torch.promote_types(matrix.dtype, torch.float32)
        added = scale * (up.to(matrix.device, wide) @ down.to(matrix.device, wide))
        matrix.copy_(matrix.to(wide) + added)
        require_finite(matrix, name, adapter.path)


def _factors_by_matrix(path: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """Returns the down and up factors of each matrix that an adapter file changes, by its name."""
    pairs: dict[str, dict[str, Tensor]] = {}
    with open_weights(path) as opened:
        for key in opened.keys():  # noqa: SIM118 - it is no dict
            matched = _NAME.fullmatch(key.removeprefix(_PREFIX))
            if matched is None:
                raise ValueError(
                    f"{str(path)!r} must hold lora_A and lora_B of linear maps only, got {key}. "
                    "Merge it with PEFT, and load the result."
                )
            require_float_storage(opened.get_slice(key).get_dtype(), key, path)
            part = opened.get_tensor(key)
            require_finite(part, key, path)
            pair = pairs.setdefault(f"{matched['module']}.weight", {})
            if matched["factor"] in pair:
                raise ValueError(
                    f"{str(path)!r} must hold one adapter, got a second tensor for {key}. Save "
                    "each adapter in a folder of its own."
                )
            pair[matched["factor"]] = part
    misfits = [
        name for name, pair in pairs.items() if len(pair) < 2 or not _fit(pair["A"], pair["B"])
    ]
    if misfits or not pairs:
        raise ValueError(
            f"{str(path)!r} must hold a lora_A of shape [r, in] and a lora_B of shape [out, r] for "
            f"each matrix, got {', '.join(misfits) or 'none'}. Download the file again."
        )
    return {name: (pair["A"], pair["B"]) for name, pair in pairs.items()}


def _fit(down: Tensor, up: Tensor) -> bool:
    return down.dim() == up.dim() == 2 and len(down) == up.shape[1]


def _scale(config: ConfigReader, name: str, *, rank: int) -> float:
    """Returns alpha / r, or alpha / sqrt(r)."""
    if (stated := config.positive_int("r")) != rank:
        raise ValueError(
            f"{config.file}: 'r' must be the rank of the weights of {name}, {rank}, got {stated}."
        )
    alpha = config.positive_number("lora_alpha", most=_MOST_ALPHA)
    return alpha / (rank**0.5 if config.boolean("use_rslora", False) else rank)
