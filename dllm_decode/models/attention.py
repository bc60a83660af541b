"""Attention of any column to any column, through a memory or not."""

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from dllm_decode.models.plan import Plan, Target
from dllm_decode.models.shape import Shape


class Norm(nn.Module):
    """RMSNorm, computed in float32."""

    def __init__(self, size: int, eps: float, *, weight_in_float32: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps
        self.weight_in_float32 = weight_in_float32

    def forward(self, hidden: Float[Tensor, "... H"]) -> Float[Tensor, "... H"]:
        """Scales every vector to unit mean square, then by the weight."""
        size = self.weight.shape
        if self.weight_in_float32:
            return F.rms_norm(hidden, size, self.weight, self.eps)
        return F.rms_norm(hidden, size, None, self.eps) * self.weight


class Attention(nn.Module):
    """Attention of any column to any column; the mask, not the module, decides who sees whom."""

    def __init__(self, shape: Shape) -> None:
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
        plan: Plan,
        keys: Float[Tensor, "R G K D"] | None,
        values: Float[Tensor, "R G K D"] | None,
        wanted: Int[Tensor, "B W"] | None,
    ) -> Float[Tensor, "B _ H"]:
        """Attends from all columns, or from the wanted ones, after storing what is fresh."""
        heads = self.qkv(hidden).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        turned, value = heads.split([self.num_heads + self.num_kv_heads, self.num_kv_heads], 1)
        if self.qk_norm:
            query, key = turned.split([self.num_heads, self.num_kv_heads], 1)
            turned = torch.cat((self.query_norm(query), self.key_norm(key)), 1)
        turned = _rotate(turned, plan.cos, plan.sin)
        query, key = turned.split([self.num_heads, self.num_kv_heads], 1)
        if plan.target is not None:
            assert keys is not None
            assert values is not None
            key = _store(keys, key, plan.target)
            value = _store(values, value, plan.target)
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
            if bias is not None and bias.shape[2] > 1:
                bias = bias.repeat(1, 1, group, 1)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        if group > 1:
            mixed = rearrange(mixed, "b g (n q) d -> b (g n) q d", n=group)
        return mixed.transpose(1, 2).flatten(2)


def _rotate(
    heads: Float[Tensor, "B H Q D"],
    cos: Float[Tensor, "B 1 Q D"],
    sin: Float[Tensor, "B 1 Q D"],
) -> Float[Tensor, "B H Q D"]:
    first, second = heads.chunk(2, -1)
    # Float32 tables lift the product to float32 by themselves.
    return (heads * cos + torch.cat((-second, first), -1) * sin).to(heads.dtype)


def _store(
    store: Float[Tensor, "R G K D"], fresh: Float[Tensor, "B G Q D"], target: Target
) -> Float[Tensor, "B G K D"]:
    """Writes in place, and returns the rows of this call: a view where they are a slice."""
    rows, slots = target
    if isinstance(slots, slice):
        store[rows, :, slots] = fresh
    else:
        if isinstance(rows, slice):
            rows = torch.arange(len(store), device=slots.device)[rows]
        store[rows[:, None], :, slots] = fresh.transpose(1, 2)
    return store[target.rows]
