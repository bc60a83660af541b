"""RND1-Base-0910: Qwen3-30B-A3B turned into a diffusion model; the prediction is shifted.

Source: Radical Numerics 2025, https://github.com/RadicalNumerics/RND1. The authors' own reader
overwrites what config.json says with the sizes of the 30B model; here config.json is believed.
"""

from dllm_decode.models.families.base import Family
from dllm_decode.models.families.reader import ConfigReader
from dllm_decode.models.families.shared import (
    MOE_NAMES,
    NO_BIAS,
    REFUSALS,
    read_num_experts,
    read_shape,
)
from dllm_decode.models.network.config import MoEConfig, NetworkConfig


def _shape(config: ConfigReader) -> NetworkConfig:
    num_experts, num_active = read_num_experts(config)
    # Every layer has experts: `mlp_only_layers` and `decoder_sparse_step` are written, and ignored.
    moe = MoEConfig(
        num_experts=num_experts,
        num_active=num_active,
        hidden_size=config.positive_int("moe_intermediate_size"),
        normalised=config.boolean("norm_topk_prob"),
        weighs_in_float32=True,
    )
    return read_shape(config, qk_norm=True, moe=moe)


RND1 = Family(
    name="RND1",
    architecture="RND1LM",
    names=MOE_NAMES,
    read_shape=_shape,
    refusals=(*REFUSALS, NO_BIAS),
    mask_id=151669,
    eos_id=151645,
    end_of_turn_ids=(151645, 151643),
    logit_shift=1,
)
