"""Attention of any column to any column, through a memory or not."""

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from dllm_decode.models.network.config import NetworkConfig
from dllm_decode.models.network.context import LayerContext
from dllm_decode.models.network.operations import LayerKV, Normed, Operations, Scaling, Stream


class Norm(nn.Module):
    """RMSNorm of a stream."""

    def __init__(self, size: int, eps: float, *, weight_in_float32: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps
        self.weight_in_float32 = weight_in_float32

    @property
    def scaling(self) -> Scaling:
        """What it computes."""
        return Scaling(self.weight, self.eps, self.weight_in_float32)

    def forward(self, stream: Stream, operations: Operations) -> Normed:
        """Adds a stream up, and scales every vector to unit mean square, then by the weight."""
        return operations.add_norm(stream, self.scaling)


class Attention(nn.Module):
    """Attention of any column to any column; the mask, not the module, decides who sees whom."""

    def __init__(self, shape: NetworkConfig) -> None:
        super().__init__()
        self.num_heads = shape.num_heads
        self.num_kv_heads = shape.num_kv_heads
        self.head_dim = shape.head_dim
        num_rows = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
        self.qkv = nn.Linear(shape.hidden_size, num_rows, bias=shape.qkv_bias)
        self.output = nn.Linear(shape.num_heads * shape.head_dim, shape.hidden_size, bias=False)
        self.qk_norm = shape.qk_norm
        if shape.qk_norm:
            exact = shape.norm_weight_in_float32
            self.query_norm = Norm(shape.head_dim, shape.norm_eps, weight_in_float32=exact)
            self.key_norm = Norm(shape.head_dim, shape.norm_eps, weight_in_float32=exact)

    def forward(
        self,
        hidden: Float[Tensor, "B Q H"],
        plan: LayerContext,
        store: LayerKV | None,
        wanted: Int[Tensor, "B W"] | None,
    ) -> Float[Tensor, "B _ H"]:
        """Attends from all columns, or from the wanted ones, after storing what is fresh."""
        query, key, value = plan.operations.rotate_and_store(
            self.qkv(hidden).unflatten(-1, (-1, self.head_dim)),
            plan.rotation,
            store,
            num_kv_heads=self.num_kv_heads,
            scalings=(self.query_norm.scaling, self.key_norm.scaling) if self.qk_norm else None,
        )
        if wanted is not None:
            index = wanted[:, None, :, None].expand(-1, self.num_heads, -1, self.head_dim)
            query = query.gather(2, index)
        mixed: Tensor = self.output(self._attend(query, key, value, plan.bias))
        return mixed

    def _attend(
        self,
        query: Float[Tensor, "B H Q D"],
        key: Float[Tensor, "B G K D"],
        value: Float[Tensor, "B G K D"],
        bias: Float[Tensor, "B 1 _ K"] | None,
    ) -> Float[Tensor, "B Q C"]:
        # Query heads that share a key head become further queries of it: nothing causal is left
        # that would forbid it, and neither keys nor values are repeated, on any kernel.
        group = self.num_heads // self.num_kv_heads
        if group > 1:
            query = rearrange(query, "b (g n) q d -> b g (n q) d", n=group)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        if group > 1:
            mixed = rearrange(mixed, "b g (n q) d -> b (g n) q d", n=group)
        return mixed.transpose(1, 2).flatten(2)
