"""LLaDA 8B Base and Instruct, LLaDA 1.5; dParallel's and d3LLM's LLaDA weights.

Source: Nie et al. 2025, "Large Language Diffusion Models", https://arxiv.org/abs/2502.09992.
"""

from dllm_decode.models.families.base import Family, Refusal
from dllm_decode.models.families.reader import ConfigReader
from dllm_decode.models.families.transformers_format import (
    MOST_LAYERS,
    read_norm_eps,
    read_rope,
    require_whole_rotation,
)
from dllm_decode.models.network.config import NetworkConfig


def _shape(config: ConfigReader) -> NetworkConfig:
    rope = read_rope(config)
    require_whole_rotation(config, rope)
    if rope.scaling is not None:
        raise config.error("rope_parameters", "without scaling", config.value("rope_parameters"))
    hidden_size = config.positive_int("d_model")
    num_heads = config.positive_int("n_heads")
    return NetworkConfig(
        # Rows of the table; ids above the tokenizer's are padding, but they are stored.
        vocab_size=config.positive_int("embedding_size", config.positive_int("vocab_size")),
        hidden_size=hidden_size,
        num_layers=config.positive_int("n_layers", most=MOST_LAYERS),
        num_heads=num_heads,
        num_kv_heads=config.positive_int("n_kv_heads", num_heads),
        head_dim=hidden_size // num_heads,
        mlp_hidden_size=(
            config.positive_int("mlp_hidden_size")
            if config.has("mlp_hidden_size")
            else config.positive_int("mlp_ratio") * hidden_size
        ),
        norm_eps=read_norm_eps(config),
        rope_theta=rope.theta,
        qkv_bias=config.boolean("include_qkv_bias", False),
        rope_in_float32=config.boolean("rope_full_precision", True),
        tied_head=config.boolean("weight_tying"),
    )


LLADA = Family(
    name="LLaDA",
    architecture="LLaDAModelLM",
    names={
        "embedding.weight": "model.transformer.wte.weight",
        "norm.weight": "model.transformer.ln_f.weight",
        # The head; `blocks.{n}.ff_out` is an MLP's down projection.
        "head.weight": "model.transformer.ff_out.weight",
        "layers.{n}.attention_norm.weight": "model.transformer.blocks.{n}.attn_norm.weight",
        "layers.{n}.query.weight": "model.transformer.blocks.{n}.q_proj.weight",
        "layers.{n}.query.bias": "model.transformer.blocks.{n}.q_proj.bias",
        "layers.{n}.key.weight": "model.transformer.blocks.{n}.k_proj.weight",
        "layers.{n}.key.bias": "model.transformer.blocks.{n}.k_proj.bias",
        "layers.{n}.value.weight": "model.transformer.blocks.{n}.v_proj.weight",
        "layers.{n}.value.bias": "model.transformer.blocks.{n}.v_proj.bias",
        "layers.{n}.output.weight": "model.transformer.blocks.{n}.attn_out.weight",
        "layers.{n}.mlp_norm.weight": "model.transformer.blocks.{n}.ff_norm.weight",
        "layers.{n}.gate.weight": "model.transformer.blocks.{n}.ff_proj.weight",
        "layers.{n}.up.weight": "model.transformer.blocks.{n}.up_proj.weight",
        "layers.{n}.down.weight": "model.transformer.blocks.{n}.ff_out.weight",
    },
    read_shape=_shape,
    refusals=(
        Refusal("block_type", ("llama",)),
        Refusal("rope", (True,)),
        Refusal("alibi", (False,)),
        Refusal("attention_layer_norm", (False,)),
        Refusal("block_group_size", (1,)),
        Refusal("scale_logits", (False,)),
        Refusal("input_emb_norm", (False,)),
        Refusal("activation_type", ("silu",)),
        Refusal("layer_norm_type", ("rms",)),
        Refusal("layer_norm_with_affine", (True,)),
        Refusal("bias_for_layer_norm", (False, None)),
        Refusal("include_bias", (False,)),
        Refusal("multi_query_attention", (None, False)),
        Refusal("clip_qkv", (None,)),
        Refusal("rope_scaling", (None,)),
    ),
    mask_id=126336,
    eos_id=126081,
    end_of_turn_ids=(126081, 126348),
    fast_tokenizer=True,
)
