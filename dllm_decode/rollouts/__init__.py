"""Rollouts: decodes that can be scored again under new weights, exactly and with gradients."""

from dllm_decode.rollouts.canvases import Canvases
from dllm_decode.rollouts.record import Rollout, Write, read_rollouts, save_rollouts
from dllm_decode.rollouts.score import Scores, score
from dllm_decode.rollouts.stream import RolloutGroup, roll_out

__all__ = [
    "Canvases",
    "Rollout",
    "RolloutGroup",
    "Scores",
    "Write",
    "read_rollouts",
    "roll_out",
    "save_rollouts",
    "score",
]
