"""SDAR 30B-A3B: SDAR with Qwen3's mixture of experts.

Source: Cheng et al. 2025, "SDAR", https://arxiv.org/abs/2510.06303.
"""

from dllm_decode.models.families.base import Family
from dllm_decode.models.families.reader import ConfigReader
from dllm_decode.models.families.shared import (
    MOE_NAMES,
    NO_BIAS,
    REFUSALS,
    read_num_experts,
    read_num_layers,
    read_shape,
)
from dllm_decode.models.network.config import MoEConfig, NetworkConfig


def _shape(config: ConfigReader) -> NetworkConfig:
    num_experts, num_active = read_num_experts(config)
    moe = MoEConfig(
        num_experts=num_experts,
        num_active=num_active,
        hidden_size=config.positive_int("moe_intermediate_size"),
        normalised=config.boolean("norm_topk_prob"),
    )
    return read_shape(
        config, qk_norm=True, norm_weight_in_float32=True, moe=moe, dense_layers=_dense(config)
    )


def _dense(config: ConfigReader) -> frozenset[int]:
    num_layers = read_num_layers(config)
    listed = config.integers("mlp_only_layers", [], most=num_layers - 1)
    step = config.positive_int("decoder_sparse_step", 1)
    return frozenset(n for n in range(num_layers) if n in listed or (n + 1) % step)


SDAR_MOE = Family(
    name="SDAR-MoE",
    architecture="SDARMoeForCausalLM",
    names=MOE_NAMES,
    read_shape=_shape,
    refusals=(*REFUSALS, NO_BIAS),
    mask_id=151669,
    eos_id=151643,
    end_of_turn_ids=(151643, 151645),
    block_length=4,
    block_keys=("block_size",),
)
