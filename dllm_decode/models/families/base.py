"""What the official checkpoints say, and what it means: one table a family."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dllm_decode.models.network.config import NetworkConfig

Config = Mapping[str, Any]


@dataclass(frozen=True)
class CheckpointFacts:
    """What a configuration says about a model.

    Attributes:
        shape: Sizes and switches of the transformer.
        mask_id: The [MASK] token.
        eos_ids: Tokens that end an answer, the configured one first.
        causal_block_length: Tokens per block of a block-causal model, else 0.
    """

    shape: NetworkConfig
    mask_id: int
    eos_ids: tuple[int, ...]
    causal_block_length: int


@dataclass(frozen=True)
class Refusal:
    """A configuration key whose other values would silently give wrong logits.

    Attributes:
        key: The key in config.json.
        allowed: Values that are understood; an absent key is understood too.
        required: The rest of the sentence "key ...".
    """

    key: str
    allowed: tuple[object, ...]
    required: str


@dataclass(frozen=True)
class Family:
    """How one family writes its checkpoints.

    Attributes:
        name: Shown in messages.
        architecture: `architectures[0]` of its config.json. `model_type` does not tell families
            apart: LLaDA and LLaDA-MoE both say "llada".
        names: Our names of tensors to the official ones; `{n}` is the layer.
        read_shape: From a checked configuration.
        refusals: Switches this package does not implement.
        mask_id: Where the configuration has none.
        eos_id: Where the configuration has none.
        end_of_turn_ids: Further ids that end an answer, where the vocabulary is that large.
        logit_shift: 1 where the logits at a column predict the next.
        block_length: Where the configuration has none; 0: not block-causal.
        fast_tokenizer: Tokenizer files are a tokenizer.json, read by PreTrainedTokenizerFast; else
            those of Qwen2Tokenizer.
    """

    name: str
    architecture: str
    names: Mapping[str, str]
    read_shape: Callable[[Config], NetworkConfig]
    refusals: tuple[Refusal, ...]
    mask_id: int
    eos_id: int
    end_of_turn_ids: tuple[int, ...] = ()
    logit_shift: int = 0
    block_length: int = 0
    fast_tokenizer: bool = False

    def official_name(self, part: str) -> str:
        """Translates a name of `Transformer.parts`."""
        words = part.split(".")
        if words[0] != "layers":
            return self.names[part]
        return self.names[".".join(("layers", "{n}", *words[2:]))].replace("{n}", words[1])

    def read(self, config: Config) -> CheckpointFacts:
        """Reads a config.json.

        Raises:
            ValueError: If a key is missing, or names something that is not implemented.
        """
        for refusal in self.refusals:
            value = config.get(refusal.key, refusal.allowed[0])
            if value not in refusal.allowed:
                raise ValueError(
                    f"{self.name} checkpoints need {refusal.key!r} {refusal.required}, got "
                    f"{value!r}. This variant is not implemented; choose another checkpoint."
                )
        try:
            shape = self.read_shape(config)
        except KeyError as error:
            raise ValueError(
                f"config.json of a {self.name} checkpoint needs the key {error}, which is missing. "
                "Take config.json from the official repository."
            ) from error
        return CheckpointFacts(
            shape,
            self._mask_id(config, shape.vocab_size),
            self._eos_ids(config, shape.vocab_size),
            (config.get("block_size") or self.block_length) if self.block_length else 0,
        )

    def _mask_id(self, config: Config, vocab_size: int) -> int:
        mask_id = config.get("mask_token_id")
        if mask_id is None:
            mask_id = self.mask_id
        if not 0 <= mask_id < vocab_size:
            raise ValueError(
                f"The mask token's id is in [0, {vocab_size}), got {mask_id}. "
                "Set 'mask_token_id' in config.json."
            )
        return int(mask_id)

    def _eos_ids(self, config: Config, vocab_size: int) -> tuple[int, ...]:
        configured = config.get("eos_token_id")
        if configured is None:
            configured = self.eos_id
        first = configured if isinstance(configured, list) else [configured]
        known = [token for token in self.end_of_turn_ids if token < vocab_size]
        return tuple(dict.fromkeys([*first, *known]))


def family_of(config: Config) -> Family:
    """Picks the family by `architectures[0]`.

    Raises:
        ValueError: If the architecture is absent or not in `FAMILIES`.
    """
    named = config.get("architectures") or [None]
    for family in FAMILIES:
        if family.architecture == named[0]:
            return family
    supported = ", ".join(f"{family.architecture} ({family.name})" for family in FAMILIES)
    raise ValueError(
        f"config.json names a supported architecture ({supported}), got {named[0]!r}. "
        "Choose a checkpoint of one of these families."
    )


def _llada_shape(config: Config) -> NetworkConfig:
    hidden_size = config["d_model"]
    num_heads = config["n_heads"]
    return NetworkConfig(
        # Rows of the table; ids above the tokenizer's are padding, but they are stored.
        vocab_size=config.get("embedding_size") or config["vocab_size"],
        hidden_size=hidden_size,
        num_layers=config["n_layers"],
        num_heads=num_heads,
        num_kv_heads=config.get("n_kv_heads") or num_heads,
        head_dim=hidden_size // num_heads,
        mlp_hidden_size=config.get("mlp_hidden_size") or config["mlp_ratio"] * hidden_size,
        norm_eps=config.get("rms_norm_eps", 1e-5),
        rope_theta=config.get("rope_theta", 10000.0),
        qkv_bias=config.get("include_qkv_bias", False),
        rope_in_float32=config.get("rope_full_precision", True),
        tied_head=config.get("weight_tying", True),
    )


def _qwen_shape(config: Config, *, qkv_bias: bool, qk_norm: bool) -> NetworkConfig:
    hidden_size = config["hidden_size"]
    num_heads = config["num_attention_heads"]
    return NetworkConfig(
        vocab_size=config["vocab_size"],
        hidden_size=hidden_size,
        num_layers=config["num_hidden_layers"],
        num_heads=num_heads,
        num_kv_heads=config.get("num_key_value_heads") or num_heads,
        head_dim=config.get("head_dim") or hidden_size // num_heads,
        mlp_hidden_size=config["intermediate_size"],
        norm_eps=config.get("rms_norm_eps", 1e-6),
        rope_theta=float(config["rope_theta"]),
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
        tied_head=config.get("tie_word_embeddings", False),
    )


def _dream_shape(config: Config) -> NetworkConfig:
    return _qwen_shape(config, qkv_bias=True, qk_norm=False)


def _sdar_shape(config: Config) -> NetworkConfig:
    shape = _qwen_shape(config, qkv_bias=False, qk_norm=True)
    return replace(shape, norm_weight_in_float32=True)


LLADA_NAMES = {
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
}
QWEN_NAMES = {
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

_LLADA_REFUSALS = (
    Refusal("block_type", ("llama",), "to be 'llama'"),
    Refusal("rope", (True,), "to be true"),
    Refusal("alibi", (False, None), "to be false"),
    Refusal("attention_layer_norm", (False, None), "to be false"),
    Refusal("block_group_size", (1, None), "to be 1"),
    Refusal("scale_logits", (False, None), "to be false"),
    Refusal("input_emb_norm", (False, None), "to be false"),
    Refusal("activation_type", ("silu",), "to be 'silu'"),
    Refusal("layer_norm_type", ("rms",), "to be 'rms'"),
    Refusal("layer_norm_with_affine", (True,), "to be true"),
    Refusal("bias_for_layer_norm", (False, None), "to be false"),
    Refusal("include_bias", (False, None), "to be false"),
    Refusal("multi_query_attention", (None, False), "to be absent or false"),
    Refusal("clip_qkv", (None,), "to be absent or null"),
    Refusal("rope_scaling", (None,), "to be absent or null"),
)
_QWEN_REFUSALS = (
    Refusal("hidden_act", ("silu",), "to be 'silu'"),
    Refusal("rope_scaling", (None,), "to be absent or null"),
    Refusal("use_sliding_window", (False, None), "to be false"),
    Refusal("use_mrope", (False, None), "to be false"),
)

LLADA = Family(
    name="LLaDA",
    architecture="LLaDAModelLM",
    names=LLADA_NAMES,
    read_shape=_llada_shape,
    refusals=_LLADA_REFUSALS,
    mask_id=126336,
    eos_id=126081,
    end_of_turn_ids=(126081, 126348),
    fast_tokenizer=True,
)
DREAM = Family(
    name="Dream",
    architecture="DreamModel",
    names=QWEN_NAMES,
    read_shape=_dream_shape,
    refusals=_QWEN_REFUSALS,
    mask_id=151666,
    eos_id=151643,
    end_of_turn_ids=(151643, 151645),
    logit_shift=1,
)
SDAR = Family(
    name="SDAR",
    architecture="SDARForCausalLM",
    names=QWEN_NAMES,
    read_shape=_sdar_shape,
    refusals=(*_QWEN_REFUSALS, Refusal("attention_bias", (False, None), "to be false")),
    mask_id=151669,
    eos_id=151643,
    end_of_turn_ids=(151643, 151645),
    block_length=4,
)
FAMILIES = (LLADA, DREAM, SDAR)
