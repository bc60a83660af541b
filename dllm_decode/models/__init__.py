"""Mask predictors: the transformer, the families it covers, and how they are read from disk."""

from dllm_decode.core.model import ForwardInputs, KVCache, MaskPredictor
from dllm_decode.models.loading.export import new_llada, save_model
from dllm_decode.models.loading.load import load_model
from dllm_decode.models.masked_transformer import MaskedTransformer
from dllm_decode.models.network.config import NetworkConfig
from dllm_decode.models.network.transformer import Transformer
from dllm_decode.models.targets.causal import CausalTarget
from dllm_decode.models.targets.load import load_target
from dllm_decode.models.targets.own_weights import as_causal_target

__all__ = [
    "CausalTarget",
    "ForwardInputs",
    "KVCache",
    "MaskPredictor",
    "MaskedTransformer",
    "NetworkConfig",
    "Transformer",
    "as_causal_target",
    "load_model",
    "load_target",
    "new_llada",
    "save_model",
]
