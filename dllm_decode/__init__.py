"""Decodes masked-diffusion language models: one loop, pluggable samplers, caches and verifiers."""

from dllm_decode.batching import decode_many
from dllm_decode.caches import (
    CachePolicy,
    DelayedCache,
    DualCache,
    FreeCache,
    NoCache,
    PrefixCache,
)
from dllm_decode.canvas import Block, Canvas
from dllm_decode.decode import decode
from dllm_decode.models import CausalTarget, load_model
from dllm_decode.models.base import ForwardInputs, KVCache, MaskPredictor
from dllm_decode.models.targets.load import load_target
from dllm_decode.observers import Gain, Gains, Observer, Revision, StepEvent, Trace
from dllm_decode.output import DecodeOutput
from dllm_decode.verify import (
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
    Tree,
    Uniform,
    Verifier,
    measure_column_cost,
)

__all__ = [
    "ARVerify",
    "Block",
    "CachePolicy",
    "Canvas",
    "CausalTarget",
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
    "Tree",
    "Uniform",
    "Verifier",
    "decode",
    "decode_many",
    "load_model",
    "load_target",
    "measure_column_cost",
]
