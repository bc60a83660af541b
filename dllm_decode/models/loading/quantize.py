"""Weights in fewer bits: products of 8 bits, and torchao's formats, which only save memory."""

from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from dllm_decode.models.network.eight_bits import Fp8Linear, Int8Linear, can_multiply_int8
from dllm_decode.models.network.transformer import Transformer

KINDS = ("int8", "int4", "fp8")
# CUDA's tensor cores multiply in float8 from this compute capability on.
_FLOAT8_CAPABILITY = (8, 9)


def check_quantization(kind: str, device: torch.device) -> None:
    """Raises ValueError if a kind of quantisation is unknown, or not available on a device."""
    if kind not in KINDS:
        raise ValueError(f"quantize must be one of {', '.join(KINDS)} or None, got {kind!r}.")
    if device.type == "cpu":
        _check_on_cpu(kind)
    elif kind == "fp8":
        _check_float8(device)
    elif find_spec("torchao") is None:
        raise ValueError(
            f"quantize={kind!r} on {device} needs torchao, which is not installed. Install the "
            'extra: pip install ".[int8]", in the clone of this repository.'
        )


def _check_on_cpu(kind: str) -> None:
    if kind == "int4":
        raise ValueError(
            "quantize must be 'int8', 'fp8' or None on a CPU, got 'int4', which is slower there "
            "than bfloat16. Pass quantize='int8', or another device."
        )
    if kind == "int8" and not can_multiply_int8():
        raise ValueError(
            "quantize='int8' must have AVX-512 VNNI on a CPU, without which 8 bits are slower than "
            "other numbers, got a CPU that has none. Leave quantize out."
        )


def _check_float8(device: torch.device) -> None:
    capability = (0, 0)
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
    if capability < _FLOAT8_CAPABILITY:
        raise ValueError(
            "quantize='fp8' must have a GPU of NVIDIA with compute capability 8.9 or higher, such "
            f"as an L4 or H100, got {device} with {capability[0]}.{capability[1]}. Pass "
            "quantize='int8', which saves memory alone."
        )


@torch.inference_mode(False)
@torch.no_grad()
def quantize_layers(transformer: Transformer, device: torch.device, kind: str) -> None:
    """Stores the matrices of all layers of a filled model in fewer bits on a device.

    "fp8" multiplies weights and activations in float8, see `Fp8Linear`, which saves time on CUDA.
    A CPU computes the same, but slowly. "int8" on a CPU multiplies weights and activations of the
    head too in 8 bits, see `Int8Linear`, in about half of the time of bfloat16.

    On an accelerator, "int8" and "int4" are torchao's formats of weights, which save memory, but no
    time: a product widens its matrix first. "int8": eight bits and a scale for each row. "int4":
    four bits and a scale for each group of 128, in bfloat16 on CUDA; elsewhere it needs a further
    library, which torchao names.

    Embedding, norms, routers and experts keep their dtype. So does the head but for "int8" on a
    CPU, because an error in the head is an error in every logit. Logits, keys and values are in the
    model's dtype as before. Only one layer at a time is on an accelerator in its old dtype.

    Raises:
        ValueError: If this model cannot be stored in this kind on this device.
    """
    if kind == "fp8":
        for layer in transformer.layers:
            transformer.store_in_8_bits(layer.to(device), Fp8Linear)
        transformer.to(device)
    elif device.type == "cpu":
        transformer.store_in_8_bits(transformer, Int8Linear)
        if transformer.lm_head is None:
            transformer.lm_head = Int8Linear(transformer.embedding.weight, None)
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
    # On CUDA, torch itself has kernels for this format; "plain" needs a further library.
    packing = "tile_packed_to_4d" if device.type == "cuda" else "plain"
    return quantization.Int4WeightOnlyConfig(int4_packing_format=packing)
