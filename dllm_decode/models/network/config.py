"""The sizes and switches that tell one model from another."""

from dataclasses import dataclass


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
        mlp_hidden_size: Inner width of the SwiGLU.
        norm_eps: Added to the mean square before its root.
        rope_theta: Base of the rotary frequencies.
        qkv_bias: Query, key and value projections have a bias.
        qk_norm: Queries and keys are normalised per head before rotation.
        rope_in_float32: Rotate in float32 whatever the dtype (LLaDA), else in the model's dtype.
        norm_weight_in_float32: Multiply by a norm's weight before rounding to the model's dtype
            (SDAR), else after.
        tied_head: The head is the embedding.
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

    def __post_init__(self) -> None:
        sizes = (
            "vocab_size",
            "hidden_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "mlp_hidden_size",
        )
        for name in sizes:
            if vars(self)[name] < 1:
                raise ValueError(f"{name} is at least 1, got {vars(self)[name]}.")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads divides num_heads, got {self.num_kv_heads} and {self.num_heads}."
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim is even, since RoPE turns pairs, got {self.head_dim}.")
