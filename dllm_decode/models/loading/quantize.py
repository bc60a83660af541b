"""Weights in eight bits: half the bytes of bfloat16, computed in the model's dtype."""

from importlib.util import find_spec

import torch
from torch import nn

from dllm_decode.models.network.transformer import Transformer


def check_quantization(kind: str) -> None:
    """Raises ValueError if the kind is not known or torchao is missing."""
    if kind != "int8":
        raise ValueError(f"quantize is 'int8' or None, got {kind!r}.")
    if find_spec("torchao") is None:
        raise ValueError(
            "Weights in eight bits need torchao, which is not installed. Install the extra: "
            "pip install 'dllm-decode[int8]'."
        )


def quantize_layers(transformer: Transformer, device: torch.device) -> None:
    """Stores the matrices of all layers in eight bits, with a scale for each row, on a device.

    Embedding, norms and head keep their dtype: the embedding is only looked up, norms are small,
    and an error in the head is an error in every logit. Only one layer at a time is on the device
    in its old dtype. Activations, logits and memory are in the model's dtype as before.

    Args:
        transformer: A filled model; changed in place.
        device: Where it goes.
    """
    # An extra, and slow to import.
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    for layer in transformer.layers:
        quantize_(layer.to(device), Int8WeightOnlyConfig(), filter_fn=_is_matrix)
    transformer.to(device)
    transformer.quantized = "int8"


def _is_matrix(module: nn.Module, name: str) -> bool:
    return isinstance(module, nn.Linear)
