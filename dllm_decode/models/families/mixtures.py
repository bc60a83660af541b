"""Families whose layers are mixtures of experts."""

from dataclasses import replace

from dllm_decode.models.families.base import Family, Refusal
from dllm_decode.models.families.dense import DENSE
from dllm_decode.models.families.reader import MOST_LENGTH, ConfigReader
from dllm_decode.models.families.transformers_format import (
    MOE_NAMES,
    MOST_EXPERTS,
    NO_BIAS,
    REFUSALS,
    SILU,
    read_factor,
    read_head_dim,
    read_num_layers,
    read_rope,
    read_shape,
)
from dllm_decode.models.network.config import MoEConfig, NetworkConfig


def _experts(config: ConfigReader, size_key: str = "moe_intermediate_size") -> MoEConfig:
    """Reads how many experts a layer has, how many each token goes to, and how wide they are."""
    num_experts = config.positive_int("num_experts", most=MOST_EXPERTS)
    return MoEConfig(
        num_experts=num_experts,
        num_active=config.positive_int("num_experts_per_tok", most=num_experts),
        hidden_size=config.positive_int(size_key),
    )


def _llada_moe(config: ConfigReader) -> NetworkConfig:
    num_layers = read_num_layers(config)
    has_experts = config.integers("moe_layer_freq", [1] * num_layers, most=1)
    if len(has_experts) != num_layers:
        raise ValueError(
            f"'moe_layer_freq' must have one number for each of the {num_layers} layers, got "
            f"{len(has_experts)}."
        )
    return read_shape(
        config,
        qk_norm=config.boolean("qk_layernorm", True),
        # Not as `norm_topk_prob` says, because the official code does not read it.
        moe=replace(_experts(config, "expert_intermediate_size"), normalised=False),
        dense_layers=frozenset(n for n in range(num_layers) if not has_experts[n]),
        mlp_key="dense_intermediate_size",
    )


def _llada2_moe(config: ConfigReader) -> NetworkConfig:
    """Returns the shape of LLaDA 2's network: experts in groups, or in a pool for each block."""
    plain = _experts(config)
    # LLaDA 2.2 has a pool of experts for each block. Its groups are written, and ignored.
    pool_size = config.integer("expert_capacity", 0)
    if pool_size:
        chosen = replace(
            plain,
            pool_size=pool_size,
            block_length=config.positive_int("block_size", most=MOST_LENGTH),
        )
    else:
        chosen = replace(
            plain,
            num_groups=config.positive_int("n_group"),
            num_open_groups=config.positive_int("topk_group"),
        )
    moe = replace(
        chosen,
        shared_hidden_size=plain.hidden_size * config.integer("num_shared_experts", 0),
        score="sigmoid",
        # A single expert keeps its score.
        normalised=plain.num_active > 1,
        has_selection_bias=config.boolean("moe_router_enable_expert_bias", True),
        scale=read_factor(config, "routed_scaling_factor"),
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
    rotary_dim = int(read_head_dim(config) * read_rope(config).share)
    if config.positive_int("rotary_dim", rotary_dim) != rotary_dim:
        raise ValueError(
            f"'rotary_dim' must be head_dim * partial_rotary_factor = {rotary_dim}, got "
            f"{config.positive_int('rotary_dim')}."
        )
    return rotary_dim


def _sdar_moe(config: ConfigReader) -> NetworkConfig:
    num_layers = read_num_layers(config)
    listed = config.integers("mlp_only_layers", [], most=num_layers - 1)
    step = config.positive_int("decoder_sparse_step", 1)
    return read_shape(
        config,
        qk_norm=True,
        norm_weight_in_float32=True,
        moe=replace(_experts(config), normalised=config.boolean("norm_topk_prob")),
        dense_layers=frozenset(n for n in range(num_layers) if n in listed or (n + 1) % step),
    )


def _rnd1(config: ConfigReader) -> NetworkConfig:
    # Every layer has experts: `mlp_only_layers` and `decoder_sparse_step` are written, and ignored.
    normalised = config.boolean("norm_topk_prob")
    moe = replace(_experts(config), normalised=normalised, weighs_in_float32=True)
    return read_shape(config, qk_norm=True, moe=moe)


MIXTURES = {
    # LLaDA-MoE-7B-A1B Base and Instruct.
    # Source: Zhu et al. 2025, "LLaDA-MoE", https://arxiv.org/abs/2509.24389.
    "llada_moe": Family(
        name="LLaDA-MoE",
        architecture="LLaDAMoEModelLM",
        names=MOE_NAMES,
        read_shape=_llada_moe,
        refusals=(
            *REFUSALS,
            NO_BIAS,
            # Null is accepted where it is the default of the authors' own configuration.
            Refusal("clip_qkv", (None,)),
            Refusal("moe_router_score_function", ("softmax", None)),
            Refusal("moe_router_enable_expert_bias", (False, None)),
            Refusal("router_num_group", (None, 1)),
            Refusal("router_topk_group", (None, 1)),
            Refusal("routed_scaling_factor", (1,)),
            Refusal("shared_expert_intermediate_size", (None, 0)),
        ),
        mask_id=156895,
        eos_id=156892,
        end_of_turn_ids=(156892,),
        fast_tokenizer=True,
    ),
    # LLaDA 2.0 to 2.2, mini and flash: block-causal, with sigmoid routing and a shared expert.
    # Source: Bie et al. 2025, "LLaDA2.0", https://arxiv.org/abs/2512.15745.
    "llada2_moe": Family(
        name="LLaDA2",
        architecture="LLaDA2MoeModelLM",
        names=MOE_NAMES
        | {
            "embedding.weight": "model.word_embeddings.weight",
            "layers.{n}.qkv.weight": "model.layers.{n}.attention.query_key_value.weight",
            "layers.{n}.query_norm.weight": "model.layers.{n}.attention.query_layernorm.weight",
            "layers.{n}.key_norm.weight": "model.layers.{n}.attention.key_layernorm.weight",
            "layers.{n}.output.weight": "model.layers.{n}.attention.dense.weight",
            "layers.{n}.router.selection_bias": "model.layers.{n}.mlp.gate.expert_bias",
        }
        | {
            f"layers.{{n}}.shared.{kind}.weight": (
                f"model.layers.{{n}}.mlp.shared_experts.{kind}_proj.weight"
            )
            for kind in ("gate", "up", "down")
        },
        read_shape=_llada2_moe,
        refusals=(
            SILU,
            Refusal("use_sliding_window", (False,)),
            Refusal("use_bias", (False,)),
            Refusal("use_qkv_bias", (False,)),
            Refusal("use_rmsnorm", (True,)),
            Refusal("norm_head", (False,)),
            Refusal("norm_softmax", (False,)),
            Refusal("norm_topk_prob", (True,)),
            Refusal("score_function", ("sigmoid",)),
            Refusal("router_dtype", ("fp32",)),
            Refusal("using_split_qkv_in_self_attention", (False,)),
            Refusal("use_qk_norm", (True,)),
        ),
        mask_id=156895,
        eos_id=156892,
        # Texts are padded with the token that ends them, and often only the padding is written.
        eos_keys=("eos_token_id", "pad_token_id"),
        end_of_turn_ids=(156892,),
        block_length=32,
        # LLaDA 2.2 chooses experts in blocks of `block_size`; blocks to decode may be longer.
        block_keys=("block_length", "block_size"),
        fast_tokenizer=True,
    ),
    # SDAR 30B-A3B: SDAR with Qwen3's mixture of experts.
    # Source: Cheng et al. 2025, "SDAR", https://arxiv.org/abs/2510.06303.
    "sdar_moe": replace(
        DENSE["sdar"],
        name="SDAR-MoE",
        architecture="SDARMoeForCausalLM",
        names=MOE_NAMES,
        read_shape=_sdar_moe,
    ),
    # RND1-Base-0910: Qwen3-30B-A3B turned into a diffusion model. The authors' own reader
    # overwrites config.json with the sizes of the 30B model; here config.json is believed.
    # Source: Radical Numerics 2025, https://github.com/RadicalNumerics/RND1.
    "rnd1": Family(
        name="RND1",
        architecture="RND1LM",
        names=MOE_NAMES,
        read_shape=_rnd1,
        refusals=(*REFUSALS, NO_BIAS),
        mask_id=151669,
        eos_id=151645,
        end_of_turn_ids=(151645, 151643),
        logit_shift=1,
    ),
}
"""Families by the names that `load_model(..., family=...)` takes."""
