"""The format that many families share: transformers' keys of config.json and names of tensors."""

from math import log
from operator import floordiv
from typing import Any, NamedTuple

from dllm_decode.models.families.base import Refusal
from dllm_decode.models.families.reader import MOST_LENGTH, ConfigReader, as_json
from dllm_decode.models.network.config import MoEConfig, NetworkConfig
from dllm_decode.models.network.rope import Llama3Scaling, RopeScaling, YarnScaling

# Ten times as many as in any model; layers are built before their weights are read.
MOST_LAYERS = 4096
MOST_EXPERTS = 65536
# The greatest factor that scales frequencies or the weights of experts.
MOST_FACTOR = 1e4
_ROPE_KEYS = (
    "rope_theta", "partial_rotary_factor", "rope_type", "type", "factor", "low_freq_factor",
    "high_freq_factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "mscale",
    "mscale_all_dim", "attention_factor", "truncate", "llama_4_scaling_beta",
)  # fmt: skip

NAMES = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
    "layers.{n}.attention_norm.weight": "model.layers.{n}.input_layernorm.weight",
    "layers.{n}.query.weight": "model.layers.{n}.self_attn.q_proj.weight",
    "layers.{n}.query.bias": "model.layers.{n}.self_attn.q_proj.bias",
    "layers.{n}.query_norm.weight": "model.layers.{n}.self_attn.q_norm.weight",
    "layers.{n}.key.weight": "model.layers.{n}.self_attn.k_proj.weight",
    "layers.{n}.key.bias": "model.layers.{n}.self_attn.k_proj.bias",
    "layers.{n}.key_norm.weight": "model.layers.{n}.self_attn.k_norm.weight",
    "layers.{n}.value.weight": "model.layers.{n}.self_attn.v_proj.weight",
    "layers.{n}.value.bias": "model.layers.{n}.self_attn.v_proj.bias",
    "layers.{n}.output.weight": "model.layers.{n}.self_attn.o_proj.weight",
    "layers.{n}.mlp_norm.weight": "model.layers.{n}.post_attention_layernorm.weight",
    "layers.{n}.gate.weight": "model.layers.{n}.mlp.gate_proj.weight",
    "layers.{n}.up.weight": "model.layers.{n}.mlp.up_proj.weight",
    "layers.{n}.down.weight": "model.layers.{n}.mlp.down_proj.weight",
}
"""Qwen2's, Qwen3's and Llama's names of tensors."""

MOE_NAMES = NAMES | {
    "layers.{n}.router.weight": "model.layers.{n}.mlp.gate.weight",
    "layers.{n}.experts.{e}.gate.weight": "model.layers.{n}.mlp.experts.{e}.gate_proj.weight",
    "layers.{n}.experts.{e}.up.weight": "model.layers.{n}.mlp.experts.{e}.up_proj.weight",
    "layers.{n}.experts.{e}.down.weight": "model.layers.{n}.mlp.experts.{e}.down_proj.weight",
}
"""Qwen3-MoE's names, one tensor for each matrix of each expert."""

SILU = Refusal("hidden_act", ("silu",))
REFUSALS = (
    SILU,
    Refusal("use_sliding_window", (False,)),
    Refusal("use_mrope", (False,)),
)
"""Switches of Qwen2 and its descendants."""

NO_BIAS = Refusal("attention_bias", (False,))
NO_MLP_BIAS = Refusal("mlp_bias", (False,))
NO_WINDOW = Refusal("sliding_window", (None, False))


def read_shape(
    config: ConfigReader,
    *,
    qkv_bias: bool = False,
    qk_norm: bool = False,
    norm_weight_in_float32: bool = False,
    rotary_dim: int | None = None,
    moe: MoEConfig | None = None,
    dense_layers: frozenset[int] = frozenset(),
    mlp_key: str = "intermediate_size",
) -> NetworkConfig:
    """Reads the sizes that Qwen2, Qwen3, Llama and their descendants write alike.

    The other switches are those of `NetworkConfig`; `mlp_key` holds the width of dense layers.
    """
    rope = read_rope(config)
    if rotary_dim is None:
        require_whole_rotation(config, rope)
    num_heads = config.positive_int("num_attention_heads")
    # Where no layer is dense, the width of dense layers is often left out.
    dense_size = None if moe is None else moe.hidden_size
    return NetworkConfig(
        vocab_size=config.positive_int("vocab_size"),
        hidden_size=config.positive_int("hidden_size"),
        num_layers=read_num_layers(config),
        num_heads=num_heads,
        num_kv_heads=config.positive_int("num_key_value_heads", num_heads),
        head_dim=read_head_dim(config),
        mlp_hidden_size=config.positive_int(mlp_key, None if dense_layers else dense_size),
        norm_eps=read_norm_eps(config),
        rope_theta=rope.theta,
        rope_scaling=rope.scaling,
        rotary_dim=rotary_dim,
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
        norm_weight_in_float32=norm_weight_in_float32,
        tied_head=config.boolean("tie_word_embeddings", False),
        moe=moe,
        dense_layers=dense_layers,
    )


def read_num_layers(config: ConfigReader) -> int:
    """Reads how many layers there are."""
    return config.positive_int("num_hidden_layers", most=MOST_LAYERS)


def read_head_dim(config: ConfigReader) -> int:
    """Reads the width of a head; without it, divides the model's width by the number of heads."""
    sizes = (config.positive_int(key) for key in ("hidden_size", "num_attention_heads"))
    return config.positive_int("head_dim", floordiv(*sizes) or 1)


def read_norm_eps(config: ConfigReader) -> float:
    """Reads the number that norms add to the mean square; every model has 1e-5 or less."""
    return config.positive_number("rms_norm_eps", most=0.01)


def read_factor(config: ConfigReader, key: str, default: float | None = None) -> float:
    """Reads a number that something is multiplied or divided by."""
    return config.positive_number(key, default, most=MOST_FACTOR)


class StatedRope(NamedTuple):
    """What a config.json says about rotation.

    Attributes:
        theta: Base of the rotary frequencies.
        scaling: Of the frequencies; `None`: as trained.
        share: The leading part of each head that turns.
    """

    theta: float
    scaling: RopeScaling | None
    share: float


def read_rope(config: ConfigReader) -> StatedRope:
    """Reads all keys of rotation, from each place where a version of transformers puts them.

    Raises:
        ValueError: If two places disagree, or one has a key that is not implemented.
    """
    # Version 4 has two of the keys outside of its object; version 5 has all in another object.
    stated: dict[str, Any] = {}
    for key in ("rope_theta", "partial_rotary_factor"):
        _collect(stated, config, key)
    for place in ("rope_scaling", "rope_parameters"):
        # RND1 writes false where others write null.
        if config.has(place) and config.value(place) is not False:
            nested = config.mapping(place)
            for key in nested.keys():  # noqa: SIM118 - it is no dict
                _collect(stated, nested, key)
    rope = ConfigReader(stated, file=config.file, prefix=_place(config))
    for key in stated:
        if key not in _ROPE_KEYS:
            raise rope.error(key, "absent, since it is not implemented", stated[key])
    if "rope_theta" not in stated:
        raise ValueError(
            f"{config.file} must have the key 'rope_theta', or 'rope_parameters' with that in it, "
            "got neither. Take it from the official repository."
        )
    return StatedRope(
        # Frequencies fall only if it is above 1.
        rope.positive_number("rope_theta", above=1.0, most=1e12),
        _scaling(rope),
        rope.positive_number("partial_rotary_factor", 1.0, most=1.0),
    )


def _collect(stated: dict[str, Any], place: ConfigReader, key: str) -> None:
    """Adds the value of a key if there is one; raises if another place has a different value."""
    value = place.value(key)
    if value is not None and stated.setdefault(key, value) != value:
        raise place.error(key, f"{as_json(stated[key])} as elsewhere in the file", value)


def _place(config: ConfigReader) -> str:
    """Returns how errors name the object that holds keys of rotation."""
    named = ("rope_parameters", "rope_scaling")
    return next((f"{key}." for key in named if config.value(key)), "")


def require_whole_rotation(config: ConfigReader, rope: StatedRope) -> None:
    """Raises ValueError if a checkpoint rotates only a part of each head."""
    if rope.share != 1:
        raise ValueError(
            f"{config.file}: 'partial_rotary_factor' must be 1 or absent, got {rope.share}. In "
            "this family whole heads are rotated; choose another checkpoint."
        )


def _scaling(rope: ConfigReader) -> RopeScaling | None:
    """Returns how rotary frequencies are scaled; `None`: as trained."""
    type_key = "rope_type" if rope.has("rope_type") else "type"
    # A factor without a type is an error, because the kind of scaling is unknown.
    kind = rope.text(type_key, None if rope.has("factor") else "default")
    if kind == "default":
        return None
    if kind == "llama3":
        return Llama3Scaling(
            factor=read_factor(rope, "factor"),
            low_turns=read_factor(rope, "low_freq_factor"),
            high_turns=read_factor(rope, "high_freq_factor"),
            original_length=_original_length(rope),
        )
    if kind == "yarn":
        beta = "llama_4_scaling_beta"
        return YarnScaling(
            factor=read_factor(rope, "factor"),
            original_length=_original_length(rope),
            fast_turns=read_factor(rope, "beta_fast", 32.0),
            slow_turns=read_factor(rope, "beta_slow", 1.0),
            attention_factor=_yarn_attention_factor(rope),
            truncate=rope.boolean("truncate", True),
            query_beta=read_factor(rope, beta) if rope.has(beta) else 0.0,
        )
    raise rope.error(type_key, "a type that is implemented, 'default', 'llama3' or 'yarn'", kind)


def _original_length(rope: ConfigReader) -> int:
    return rope.positive_int("original_max_position_embeddings", most=MOST_LENGTH)


def _yarn_attention_factor(rope: ConfigReader) -> float:
    if rope.value("attention_factor") is not None:
        return read_factor(rope, "attention_factor")
    factor = read_factor(rope, "factor")

    def growth(scale: float) -> float:
        return 0.1 * scale * log(factor) + 1.0 if factor > 1 else 1.0

    if rope.has("mscale") and rope.has("mscale_all_dim"):
        divisor = growth(read_factor(rope, "mscale_all_dim"))
        return growth(read_factor(rope, "mscale")) / divisor
    return growth(1.0)
