"""Trains the embedded models on pairs of token ids."""

from dllm_decode.training.causal import Causal
from dllm_decode.training.checkpoints import Progress, load_checkpoint, save_checkpoint
from dllm_decode.training.examples import Batch, FreshRows, Kind, Pair, PooledRows, Rows
from dllm_decode.training.loop import Report, Settings, train
from dllm_decode.training.masked_diffusion import MaskedDiffusion
from dllm_decode.training.masking import MaskSampler
from dllm_decode.training.muon import Muon, make_optimisers
from dllm_decode.training.objective import Objective
from dllm_decode.training.progress_bar import ProgressBar
from dllm_decode.training.schedule import Budget, LinearDecay, Minutes, Samples

__all__ = [
    "Batch",
    "Budget",
    "Causal",
    "FreshRows",
    "Kind",
    "LinearDecay",
    "MaskSampler",
    "MaskedDiffusion",
    "Minutes",
    "Muon",
    "Objective",
    "Pair",
    "PooledRows",
    "Progress",
    "ProgressBar",
    "Report",
    "Rows",
    "Samples",
    "Settings",
    "load_checkpoint",
    "make_optimisers",
    "save_checkpoint",
    "train",
]
