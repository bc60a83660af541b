"""Trains models: one loop for causal, masked and block-wise models, filters and distillation."""

from dllm_decode.training.checkpoints import Progress
from dllm_decode.training.examples import Batch, Kind, KindRows, Objective, Pair, Part, Source
from dllm_decode.training.loop import Settings, train
from dllm_decode.training.masked_diffusion import Causal, MaskedDiffusion, MaskSampler
from dllm_decode.training.optimisers import make_optimisers

__all__ = [
    "Batch",
    "Causal",
    "Kind",
    "KindRows",
    "MaskSampler",
    "MaskedDiffusion",
    "Objective",
    "Pair",
    "Part",
    "Progress",
    "Settings",
    "Source",
    "make_optimisers",
    "train",
]
