"""Rollouts: decodes that can be scored again under new weights, exactly and with gradients."""

from dllm_decode.rollouts.canvases import Canvases
from dllm_decode.rollouts.rollout import Rollout, Write, read_rollouts, save_rollouts
from dllm_decode.rollouts.rollout_groups import RolloutGroup, roll_out
from dllm_decode.rollouts.score import Scores, score

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
