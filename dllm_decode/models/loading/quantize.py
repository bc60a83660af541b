"""Weights in fewer bits: by torchao on an accelerator, by oneDNN on a CPU."""

from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from dllm_decode.models.network.int8 import can_multiply_int8
from dllm_decode.models.network.transformer import Transformer

KINDS = ("int8", "int4", "fp8")


def check_quantization(kind: str, device: torch.device) -> None:
    """Raises ValueError if a kind of quantisation is unknown, or not available on a device."""
    if kind not in KINDS:
        raise ValueError(f"quantize must be one of {', '.join(KINDS)} or None, got {kind!r}.")
    if device.type == "cpu":
        _check_on_cpu(kind)
    elif find_spec("torchao") is None:
        raise ValueError(
            f"quantize={kind!r} on {device} needs torchao, which is not installed. Install the "
            'extra: pip install ".[int8]", in the clone of this repository.'
        )


def _check_on_cpu(kind: str) -> None:
    if not can_multiply_int8():
        raise ValueError(
            "quantize on a CPU must have AVX-512 VNNI, without which 8 bits are slower than "
            f"other numbers, got {kind!r} on a CPU that has none. Leave quantize out."
        )
    if kind != "int8":
        raise ValueError(
            f"quantize must be 'int8' or None on a CPU, got {kind!r}, which is slower there than "
            "bfloat16. Pass quantize='int8', or another device."
        )


def quantize_layers(transformer: Transformer, device: torch.device, kind: str) -> None:
    """Stores the matrices of all layers of a filled model in fewer bits on a device.

    On a CPU "int8" means weights and activations, also those of the head, see `Int8Linear`. A
    product takes about half of the time that it takes in bfloat16. Embedding, norms, routers and
    experts keep their dtype.

    On an accelerator, the kinds are torchao's weight-only schemes. "int8": eight bits and a scale
    for each row. "int4": four bits and a scale for each group of 128, in bfloat16 on CUDA;
    elsewhere it needs a further library, which torchao names. "fp8": floating point (e4m3) and a
    scale for each row. Embedding, norms and head keep their dtype: the embedding is only looked
    up, norms are small, and an error in the head is an error in every logit. Activations, logits
    and keys and values are in the model's dtype as before. Only one layer at a time is on the
    device in its old dtype.

    Raises:
        ValueError: If torchao cannot store this model in this kind on this device.
    """
    if device.type == "cpu":
        transformer.store_in_8_bits()
    else:
        _by_torchao(transformer, device, kind)
    transformer.quantized = kind


def _by_torchao(transformer: Transformer, device: torch.device, kind: str) -> None:
    config = _config(kind, device)
    # Imported here, because it is an optional extra and slow to import.
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


def _config(kind: str, device: torch.device) -> Any:
    from torchao import quantization

    if kind == "int8":
        return quantization.Int8WeightOnlyConfig()
    if kind == "fp8":
        return quantization.Float8WeightOnlyConfig()
    # On CUDA, torch itself has kernels for this format; "plain" needs a further library.
    packing = "tile_packed_to_4d" if device.type == "cuda" else "plain"
    return quantization.Int4WeightOnlyConfig(int4_packing_format=packing)
