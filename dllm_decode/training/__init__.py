"""Training: the loop and the losses of distillation, and filters for Learn2PD."""

from dllm_decode.training.checkpoints import Progress
from dllm_decode.training.examples import Batch, Objective, Pair, Part, Source
from dllm_decode.training.loop import Settings, train
from dllm_decode.training.optimisers import make_optimisers

__all__ = [
    "Batch",
    "Objective",
    "Pair",
    "Part",
    "Progress",
    "Settings",
    "Source",
    "make_optimisers",
    "train",
]
