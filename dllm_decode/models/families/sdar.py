"""SDAR 1.7B, 4B and 8B, and TraDo: Qwen3 that attends within a block and to earlier blocks.

Source: Cheng et al. 2025, "SDAR", https://arxiv.org/abs/2510.06303.
"""

from functools import partial

from dllm_decode.models.families.base import Family
from dllm_decode.models.families.shared import NAMES, NO_BIAS, REFUSALS, read_shape

SDAR = Family(
    name="SDAR",
    architecture="SDARForCausalLM",
    names=NAMES,
    read_shape=partial(read_shape, qk_norm=True, norm_weight_in_float32=True),
    refusals=(*REFUSALS, NO_BIAS),
    mask_id=151669,
    eos_id=151643,
    end_of_turn_ids=(151643, 151645),
    block_length=4,
    block_keys=("block_size",),
)
