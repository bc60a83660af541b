"""LLaDA-MoE-7B-A1B Base and Instruct.

Source: Zhu et al. 2025, "LLaDA-MoE", https://arxiv.org/abs/2509.24389.
"""

from dllm_decode.models.families.base import Family, Refusal
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
        hidden_size=config.positive_int("expert_intermediate_size"),
        # Whatever `norm_topk_prob` says: the official code does not read it.
        normalised=False,
    )
    return read_shape(
        config,
        qk_norm=config.boolean("qk_layernorm", True),
        moe=moe,
        dense_layers=_dense(config),
        mlp_key="dense_intermediate_size",
    )


def _dense(config: ConfigReader) -> frozenset[int]:
    num_layers = read_num_layers(config)
    has_experts = config.integers("moe_layer_freq", [1] * num_layers, most=1)
    if len(has_experts) != num_layers:
        raise ValueError(
            f"'moe_layer_freq' must have one number for each of the {num_layers} layers, got "
            f"{len(has_experts)}."
        )
    return frozenset(n for n in range(num_layers) if not has_experts[n])


LLADA_MOE = Family(
    name="LLaDA-MoE",
    architecture="LLaDAMoEModelLM",
    names=MOE_NAMES,
    read_shape=_shape,
    refusals=(
        *REFUSALS,
        NO_BIAS,
        # Null is accepted where it is the default of the authors' own configuration.
        Refusal("clip_qkv", (None,), "to be absent or null"),
        Refusal("moe_router_score_function", ("softmax", None), "to be 'softmax'"),
        Refusal("moe_router_enable_expert_bias", (False, None), "to be false"),
        Refusal("router_num_group", (None, 1), "to be absent or null"),
        Refusal("router_topk_group", (None, 1), "to be absent or null"),
        Refusal("routed_scaling_factor", (1,), "to be 1"),
        Refusal("shared_expert_intermediate_size", (None, 0), "to be absent or null"),
        Refusal("partial_rotary_factor", (1,), "to be 1"),
    ),
    mask_id=156895,
    eos_id=156892,
    end_of_turn_ids=(156892,),
    fast_tokenizer=True,
)
