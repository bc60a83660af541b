from .batching import decode_many
from .caches import (
    CachePolicy,
    DelayedCache,
    DualCache,
    FreeCache,
    NoCache,
    PrefixCache,
)
from .canvas import Block, Canvas
from .config import DecodeConfig
from .loop import decode
from .models import CausalTarget, load_model
from .models.base import ForwardInputs, KVCache, MaskPredictor
from .models.targets.load import load_target
from .observers import Gain, Gains, Observer, Revision, StepEvent, Trace
from .output import DecodeOutput
from .verify import (
    ARVerify,
    Draft,
    Drafting,
    DraftLength,
    Guided,
    NGram,
    NoVerifier,
    PathSearch,
    Sampled,
    SelfVerify,
    Uniform,
    Verifier,
)

__version__: str

__all__ = [
    "ARVerify",
    "Block",
    "CachePolicy",
    "Canvas",
    "CausalTarget",
    "DecodeConfig",
    "DecodeOutput",
    "DelayedCache",
    "Draft",
    "DraftLength",
    "Drafting",
    "DualCache",
    "ForwardInputs",
    "FreeCache",
    "Gain",
    "Gains",
    "Guided",
    "KVCache",
    "MaskPredictor",
    "NGram",
    "NoCache",
    "NoVerifier",
    "Observer",
    "PathSearch",
    "PrefixCache",
    "Revision",
    "Sampled",
    "SelfVerify",
    "StepEvent",
    "Trace",
    "Uniform",
    "Verifier",
    "decode",
    "decode_many",
    "load_model",
    "load_target",
]
