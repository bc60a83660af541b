"""The sizes and switches that tell one model from another."""

from dataclasses import dataclass

from dllm_decode.models.network.rope import Rope, RopeScaling


@dataclass(frozen=True)
class MoEConfig:
    """How a mixture of experts chooses, and what it mixes.

    Attributes:
        num_experts: Experts of a layer that tokens are routed to, E.
        num_active: Experts that each token is routed to, A.
        hidden_size: Inner width of an expert's SwiGLU, M.
        shared_hidden_size: Inner width of an expert that every token goes to; 0: there is none.
        score: "softmax" of the router's logits over all experts, or the "sigmoid" of each.
        normalised: The chosen experts' scores are divided by their sum.
        has_selection_bias: A learned number is added to each score for the choice alone.
        num_groups: Experts are split into this many groups; divides `num_experts`.
        num_open_groups: Experts are chosen from this many groups only. The score of a group is
            the sum of its two best experts' scores.
        block_length: Tokens of a row that choose their experts together; 1: each by itself.
        pool_size: Experts that the tokens of such a block choose from; 0: all experts.
        scale: Multiplies the weights.
        routes_in_float32: The router's logits are computed in float32, else in the model's dtype.
        mixes_in_float32: Experts' outputs are weighted and added up in float32, then rounded once.
        weighs_in_float32: Experts' outputs are multiplied by float32 weights, and each product is
            rounded; else weights are rounded first.
    """

    num_experts: int
    num_active: int
    hidden_size: int
    shared_hidden_size: int = 0
    score: str = "softmax"
    normalised: bool = True
    has_selection_bias: bool = False
    num_groups: int = 1
    num_open_groups: int = 1
    block_length: int = 1
    pool_size: int = 0
    scale: float = 1.0
    routes_in_float32: bool = False
    mixes_in_float32: bool = False
    weighs_in_float32: bool = False

    def __post_init__(self) -> None:
        if self.score not in ("softmax", "sigmoid"):
            raise ValueError(f"score must be 'softmax' or 'sigmoid', got {self.score!r}.")
        _require_positive(self, "num_experts", "num_active", "hidden_size", "num_groups")
        if self.num_experts % self.num_groups:
            raise ValueError(
                f"num_groups must divide num_experts, got {self.num_groups} and {self.num_experts}."
            )
        if not 1 <= self.num_open_groups <= self.num_groups:
            raise ValueError(
                f"num_open_groups must be from 1 to num_groups = {self.num_groups}, got "
                f"{self.num_open_groups}."
            )
        if self.pool_size and not self.num_active <= self.pool_size <= self.num_experts:
            raise ValueError(
                f"pool_size must be from num_active = {self.num_active} to num_experts = "
                f"{self.num_experts}, got {self.pool_size}."
            )
        num_choices = self.num_open_groups * (self.num_experts // self.num_groups)
        if self.num_active > num_choices:
            raise ValueError(
                f"num_active must be at most {num_choices}, the experts that a token can choose "
                f"from, got {self.num_active}."
            )


@dataclass(frozen=True)
class NetworkConfig:
    """Everything that fixes the parameters and the arithmetic of a model.

    Attributes:
        vocab_size: Rows of the embedding and of the head, V; may exceed the tokenizer's ids.
        hidden_size: Width of the residual stream.
        num_layers: Number of decoder blocks.
        num_heads: Query heads.
        num_kv_heads: Key and value heads; divides `num_heads`.
        head_dim: Width of a head; even. Not always `hidden_size / num_heads`.
        mlp_hidden_size: Inner width of the SwiGLU of layers without experts.
        norm_eps: Added to the mean square before its root.
        rope_theta: Base of the rotary frequencies.
        qkv_bias: Query, key and value projections have a bias.
        qk_norm: Queries and keys are normalised per head before rotation.
        rope_in_float32: Rotate in float32 whatever the dtype (LLaDA), else in the model's dtype.
        norm_weight_in_float32: Multiply by a norm's weight before rounding to the model's dtype
            (SDAR), else after.
        tied_head: The head is the embedding.
        rotary_dim: Leading components of a head that turn; `None`: all.
        rope_scaling: Scaling of the rotary frequencies; `None`: as trained.
        moe: Experts instead of one MLP; `None`: in no layer.
        dense_layers: Layers that have one MLP all the same, counted from 0.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_hidden_size: int
    norm_eps: float
    rope_theta: float
    qkv_bias: bool = False
    qk_norm: bool = False
    rope_in_float32: bool = False
    norm_weight_in_float32: bool = False
    tied_head: bool = False
    rotary_dim: int | None = None
    rope_scaling: RopeScaling | None = None
    moe: MoEConfig | None = None
    dense_layers: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        _require_positive(
            self, "vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads",
            "head_dim", "mlp_hidden_size",
        )  # fmt: skip
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads must divide num_heads, got {self.num_kv_heads} and {self.num_heads}."
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even, since RoPE turns pairs, got {self.head_dim}.")
        rotary_dim = self.rope.dim
        if rotary_dim % 2 or not 2 <= rotary_dim <= self.head_dim:
            raise ValueError(
                f"rotary_dim must be even and at most head_dim = {self.head_dim}, got {rotary_dim}."
            )

    @property
    def rope(self) -> Rope:
        """How queries and keys are rotated."""
        dim = self.head_dim if self.rotary_dim is None else self.rotary_dim
        return Rope(dim, self.rope_theta, self.rope_in_float32, self.rope_scaling)

    @property
    def routing_block_length(self) -> int:
        """Columns of a row of which a forward computes all or none, see `MoEConfig`."""
        return 1 if self.moe is None else self.moe.block_length

    @property
    def qkv_rows(self) -> tuple[int, int, int]:
        """Rows of the matrices of queries, keys and values."""
        kv_rows = self.num_kv_heads * self.head_dim
        return (self.num_heads * self.head_dim, kv_rows, kv_rows)

    def has_experts(self, layer: int) -> bool:
        """Says whether this layer, counted from 0, is a mixture of experts."""
        return self.moe is not None and layer not in self.dense_layers


def _require_positive(config: MoEConfig | NetworkConfig, *names: str) -> None:
    for name in names:
        if vars(config)[name] < 1:
            raise ValueError(f"{name} must be at least 1, got {vars(config)[name]}.")
