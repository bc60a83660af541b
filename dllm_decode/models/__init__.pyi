from .loading.export import save_model
from .loading.load import load_model
from .loading.new_llada import new_llada
from .loading.target import load_drafter, load_target
from .loading.weight_versions import replace_weights
from .network.config import NetworkConfig
from .network.transformer import Transformer
from .predictors.masked_transformer import MaskedTransformer
from .targets.causal import CausalTarget
from .targets.own_weights import as_causal_target

__all__ = [
    "CausalTarget",
    "MaskedTransformer",
    "NetworkConfig",
    "Transformer",
    "as_causal_target",
    "load_drafter",
    "load_model",
    "load_target",
    "new_llada",
    "replace_weights",
    "save_model",
]
