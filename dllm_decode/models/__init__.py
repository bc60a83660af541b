"""Mask predictors: the transformer, the families it covers, and how they are read from disk."""

from dllm_decode.models.base import Inputs, MaskPredictor, Memory
from dllm_decode.models.causal import CausalTarget
from dllm_decode.models.export import new_llada, save_model
from dllm_decode.models.load import load_model
from dllm_decode.models.load_target import load_target
from dllm_decode.models.shape import Shape
from dllm_decode.models.transformer import MaskedTransformer, Transformer

__all__ = [
    "CausalTarget",
    "Inputs",
    "MaskPredictor",
    "MaskedTransformer",
    "Memory",
    "Shape",
    "Transformer",
    "load_model",
    "load_target",
    "new_llada",
    "save_model",
]
