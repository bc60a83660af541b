"""Weights in fewer bits, as torchao stores and multiplies them."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from dllm_decode.models.network.transformer import Transformer

KINDS = ("int8", "int4", "fp8")
_METHODS = {"gptq": "GPTQ", "awq": "AWQ", "bitsandbytes": "bitsandbytes"}


def check_quantization(kind: str) -> None:
    """Raises ValueError if the kind is not known or torchao is missing."""
    if kind not in KINDS:
        raise ValueError(f"quantize must be one of {', '.join(KINDS)} or None, got {kind!r}.")
    if find_spec("torchao") is None:
        raise ValueError(
            f"quantize={kind!r} needs torchao, which is not installed. Install the extra: "
            'pip install ".[int8]", in the clone of this repository.'
        )


def check_stored(config: Mapping[str, Any], *, file: str) -> None:
    """Raises ValueError if a checkpoint's weights were quantised before they were stored."""
    found = config.get("quantization_config")
    if not found:
        return
    method = str(found.get("quant_method", "") if isinstance(found, Mapping) else found)
    raise ValueError(
        f"Weights must be stored as they were trained, got quantization_config of "
        f"{_METHODS.get(method, method) or 'an unknown method'} in {file}, which cannot be read. "
        "Load the original checkpoint; quantize='int4' or 'int8' stores that in fewer bits."
    )


def quantize_layers(transformer: Transformer, device: torch.device, kind: str) -> None:
    """Stores the matrices of all layers of a filled model in fewer bits on a device.

    Embedding, norms and head keep their dtype: the embedding is only looked up, norms are small,
    and an error in the head is an error in every logit. Only one layer at a time is on the device
    in its old dtype. Activations, logits and keys and values are in the model's dtype as before.

    The kinds are torchao's weight-only schemes. "int8": eight bits and a scale for each row.
    "int4": four bits and a scale for each group of 128, in bfloat16 on CUDA; elsewhere it needs a
    further library, which torchao names. "fp8": floating point (e4m3) and a scale for each row.

    Raises:
        ValueError: If torchao cannot store this model so on this device.
    """
    config = _config(kind, device)
    # An extra, and slow to import.
    from torchao.quantization import quantize_

    try:
        for layer in transformer.layers:
            quantize_(
                layer.to(device), config, filter_fn=lambda module, _: isinstance(module, nn.Linear)
            )
        transformer.to(device)
    except (AssertionError, ImportError, NotImplementedError, RuntimeError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise ValueError(
            f"torchao cannot store this model as {kind} on {device} ({lines[0]}). Choose another "
            "kind, dtype or device."
        ) from error
    transformer.quantized = kind


def _config(kind: str, device: torch.device) -> Any:
    from torchao import quantization

    if kind == "int8":
        return quantization.Int8WeightOnlyConfig()
    if kind == "fp8":
        return quantization.Float8WeightOnlyConfig()
    # On CUDA the format whose kernels torch itself has; the other needs a further library.
    packing = "tile_packed_to_4d" if device.type == "cuda" else "plain"
    return quantization.Int4WeightOnlyConfig(int4_packing_format=packing)
