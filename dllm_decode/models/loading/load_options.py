"""The further options of `load_model`, by the names that transformers has, and their refusals."""

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any, TypedDict

import torch

from dllm_decode.core.other_names import refusal
from dllm_decode.models.loading.placement import Device

HINTS = {
    "trust_remote_code": "no code of a checkpoint is ever run; leave it out.",
    "load_in_4bit": "quantize='int4' stores the matrices of the layers so.",
    "load_in_8bit": "quantize='int8' stores the matrices of the layers so.",
    "quantization_config": "quantize='int8', 'int4' or 'fp8' stores the matrices of the layers so.",
    "token": "run `hf auth login`, or set HF_TOKEN.",
    "cache_dir": "set HF_HUB_CACHE.",
    "local_files_only": "set HF_HUB_OFFLINE=1.",
    "max_memory": "device='auto' leaves a tenth of each GPU free; CUDA_VISIBLE_DEVICES hides GPUs.",
    "attn_implementation": "torch chooses the kernels of attention; leave it out.",
    "subfolder": "download the repository, and pass the path of the folder.",
    "block_size": "its name is block_length.",
    "mask_token_id": "its name is mask_id.",
}


class LoadOptions(TypedDict, total=False):
    """Further keywords of `load_model`.

    Attributes:
        device_map: The name that transformers has for `device`; pass only one of the two.
        torch_dtype: The name that older versions of transformers have for `dtype`.
    """

    device_map: Device | None
    torch_dtype: str | torch.dtype | None


def require_options(function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Raises TypeError, with a hint, unless all names are fields of `LoadOptions`."""
    for name in given:
        if name not in LoadOptions.__annotations__:
            *parameters, _ = signature(function).parameters
            names = [*parameters, *LoadOptions.__annotations__]
            raise TypeError(refusal(name, function.__name__, names, HINTS))


def require_left_out(left_out: Mapping[str, object], name: str) -> None:
    """Raises ValueError if one of these options, which only our own networks have, is set."""
    passed = [option for option, value in left_out.items() if value]
    if passed:
        raise ValueError(
            f"{passed[0]} must be left out for {name}, which transformers computes. Only networks "
            "of this package have it."
        )
