"""LLaDA 2.0 and 2.1, mini and flash: block-causal, with sigmoid routing and a shared expert.

Source: Bie et al. 2025, "LLaDA2.0", https://arxiv.org/abs/2512.15745.
"""

from dllm_decode.models.families.base import Family, Refusal
from dllm_decode.models.families.reader import ConfigReader
from dllm_decode.models.families.shared import (
    MOE_NAMES,
    read_factor,
    read_head_dim,
    read_num_experts,
    read_num_layers,
    read_shape,
)
from dllm_decode.models.network.config import MoEConfig, NetworkConfig


def _shape(config: ConfigReader) -> NetworkConfig:
    num_experts, num_active = read_num_experts(config)
    expert_size = config.positive_int("moe_intermediate_size")
    moe = MoEConfig(
        num_experts=num_experts,
        num_active=num_active,
        hidden_size=expert_size,
        shared_hidden_size=expert_size * config.integer("num_shared_experts", 0),
        score="sigmoid",
        # A single expert keeps its score.
        normalised=num_active > 1,
        has_selection_bias=config.boolean("moe_router_enable_expert_bias", True),
        num_groups=config.positive_int("n_group", 1),
        num_open_groups=config.positive_int("topk_group", 1),
        scale=read_factor(config, "routed_scaling_factor", 1.0),
        routes_in_float32=True,
        mixes_in_float32=True,
    )
    num_dense = config.integer("first_k_dense_replace", 0, most=read_num_layers(config))
    return read_shape(
        config,
        # Normalised heads are in every checkpoint, and in few configurations.
        qk_norm=True,
        moe=moe,
        dense_layers=frozenset(range(num_dense)),
        rotary_dim=_rotary_dim(config),
    )


def _rotary_dim(config: ConfigReader) -> int:
    share = config.positive_number("partial_rotary_factor", 1.0, most=1.0)
    rotary_dim = int(read_head_dim(config) * share)
    if config.positive_int("rotary_dim", rotary_dim) != rotary_dim:
        raise ValueError(
            f"'rotary_dim' must be head_dim * partial_rotary_factor = {rotary_dim}, got "
            f"{config.positive_int('rotary_dim')}."
        )
    return rotary_dim


_RENAMED = {
    "embedding.weight": "model.word_embeddings.weight",
    "layers.{n}.qkv.weight": "model.layers.{n}.attention.query_key_value.weight",
    "layers.{n}.query_norm.weight": "model.layers.{n}.attention.query_layernorm.weight",
    "layers.{n}.key_norm.weight": "model.layers.{n}.attention.key_layernorm.weight",
    "layers.{n}.output.weight": "model.layers.{n}.attention.dense.weight",
    "layers.{n}.router.selection_bias": "model.layers.{n}.mlp.gate.expert_bias",
    "layers.{n}.shared.gate.weight": "model.layers.{n}.mlp.shared_experts.gate_proj.weight",
    "layers.{n}.shared.up.weight": "model.layers.{n}.mlp.shared_experts.up_proj.weight",
    "layers.{n}.shared.down.weight": "model.layers.{n}.mlp.shared_experts.down_proj.weight",
}

LLADA2_MOE = Family(
    name="LLaDA2",
    architecture="LLaDA2MoeModelLM",
    names=MOE_NAMES | _RENAMED,
    read_shape=_shape,
    refusals=(
        Refusal("hidden_act", ("silu",), "to be 'silu'"),
        Refusal("use_sliding_window", (False,), "to be false"),
        Refusal("use_bias", (False,), "to be false"),
        Refusal("use_qkv_bias", (False,), "to be false"),
        Refusal("use_rmsnorm", (True,), "to be true"),
        Refusal("norm_head", (False,), "to be false"),
        Refusal("norm_softmax", (False,), "to be false"),
        Refusal("norm_topk_prob", (True,), "to be true"),
        Refusal("score_function", ("sigmoid",), "to be 'sigmoid'"),
        Refusal("router_dtype", ("fp32",), "to be 'fp32'"),
        Refusal("using_split_qkv_in_self_attention", (False,), "to be false"),
    ),
    mask_id=156895,
    eos_id=156892,
    # Texts are padded with the token that ends them, and often only the padding is written down.
    eos_keys=("eos_token_id", "pad_token_id"),
    end_of_turn_ids=(156892,),
    block_length=32,
    block_keys=("block_size", "block_length"),
    fast_tokenizer=True,
    split_qkv=False,
)
