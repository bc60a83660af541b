"""Weights and activations of a model's layers in 8 bits."""

import torch

from dllm_decode.models.network.eight_bits import Fp8Linear, Int8Linear, can_multiply_int8
from dllm_decode.models.network.transformer import Transformer

KINDS = ("fp8", "int8")
# CUDA's tensor cores multiply in float8 from this compute capability on.
_FLOAT8_CAPABILITY = (8, 9)


def check_quantization(kind: str, device: torch.device) -> None:
    """Raises ValueError if a kind of quantisation is unknown, or not available on a device."""
    if kind not in KINDS:
        raise ValueError(f"quantize must be one of {', '.join(KINDS)} or None, got {kind!r}.")
    if kind == "int8":
        _check_int8(device)
    elif device.type != "cpu":
        _check_float8(device)


def _check_int8(device: torch.device) -> None:
    if device.type != "cpu":
        raise ValueError(
            f"quantize='int8' must be on a CPU, whose products of 8 bits it uses, got {device}. "
            "Pass quantize='fp8'."
        )
    if not can_multiply_int8():
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
            f"as an L4 or H100, got {device} with {capability[0]}.{capability[1]}. Leave quantize "
            "out; device='auto' spreads a model over several GPUs."
        )


@torch.inference_mode(False)
@torch.no_grad()
def quantize_layers(transformer: Transformer, device: torch.device, kind: str) -> None:
    """Stores the matrices of all layers of a filled model in 8 bits on a device.

    "fp8" multiplies weights and activations in float8, see `Fp8Linear`, which saves time on CUDA.
    A CPU computes the same, but slowly. "int8" multiplies weights and activations, of the head too,
    in 8 bits on a CPU, see `Int8Linear`, in about half of the time of bfloat16.

    Embedding, norms, routers and experts keep their dtype. So does the head but for "int8", because
    an error in the head is an error in every logit. Logits, keys and values are in the model's
    dtype as before. Only one layer at a time is on an accelerator in its old dtype.

    Raises:
        ValueError: If the sizes of a matrix do not allow it.
    """
    if kind == "fp8":
        for layer in transformer.layers:
            transformer.store_in_8_bits(layer.to(device), Fp8Linear)
        transformer.to(device)
    else:
        transformer.store_in_8_bits(transformer, Int8Linear)
        if transformer.lm_head is None:
            transformer.lm_head = Int8Linear(transformer.embedding.weight, None)
    transformer.quantized = kind
