"""Decodes masked-diffusion language models: one loop, pluggable samplers, caches and verifiers."""

from dllm_decode.caches import CachePolicy, NoCache
from dllm_decode.canvas import Block, Canvas
from dllm_decode.decode import DecodeOutput, decode
from dllm_decode.models import load_model
from dllm_decode.models.base import Inputs, MaskPredictor, Memory
from dllm_decode.trace import Observer, StepEvent, Trace
from dllm_decode.verify import NoVerifier, Verifier

__all__ = [
    "Block",
    "CachePolicy",
    "Canvas",
    "DecodeOutput",
    "Inputs",
    "MaskPredictor",
    "Memory",
    "NoCache",
    "NoVerifier",
    "Observer",
    "StepEvent",
    "Trace",
    "Verifier",
    "decode",
    "load_model",
]
