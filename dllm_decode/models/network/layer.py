"""A decoder block: norms, attention, then an MLP or a mixture of experts."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from dllm_decode.models.network.config import NetworkConfig
from dllm_decode.models.network.context import LayerContext, join_columns, split_columns
from dllm_decode.models.network.moe import MLP, MoE
from dllm_decode.models.network.operations import attend, store
from dllm_decode.models.network.packed import Linear


class Norm(nn.Module):
    """Scales every vector to unit mean square, then multiplies it by a weight.

    Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization",
        https://arxiv.org/abs/1910.07467.
    """

    def __init__(self, size: int, eps: float, *, weight_in_float32: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps
        self.weight_in_float32 = weight_in_float32

    def forward(self, hidden: Float[Tensor, "... H"]) -> Float[Tensor, "... H"]:
        """Normalises in float32, and multiplies by the weight before or after rounding."""
        if self.weight_in_float32:
            return F.rms_norm(hidden, self.weight.shape, self.weight, self.eps)
        return F.rms_norm(hidden, self.weight.shape, None, self.eps) * self.weight


class Attention(nn.Module):
    """Attention of any column to any column, through a KV cache or not; a mask may hide some."""

    def __init__(self, config: NetworkConfig, index: int) -> None:
        super().__init__()
        self.index = index
        self.num_heads = config.num_heads
        self.num_kv_heads = config.num_kv_heads
        self.head_dim = config.head_dim
        # Before `qkv`, because new weights are drawn in this order.
        self.output = Linear(config.num_heads * config.head_dim, config.hidden_size, bias=False)
        self.qkv = Linear(config.hidden_size, sum(config.qkv_rows), bias=config.qkv_bias)
        self.qk_norm = config.qk_norm
        if config.qk_norm:
            exact = config.norm_weight_in_float32
            self.query_norm = Norm(config.head_dim, config.norm_eps, weight_in_float32=exact)
            self.key_norm = Norm(config.head_dim, config.norm_eps, weight_in_float32=exact)

    def forward(
        self, hidden: Float[Tensor, "_ _ H"], groups: Sequence[LayerContext]
    ) -> Float[Tensor, "_ _ H"]:
        """Attends group by group; both matrices multiply the joined columns of all groups."""
        heads = self.qkv(hidden).unflatten(-1, (-1, self.head_dim))
        parts = split_columns(heads, [group.size for group in groups])
        pairs = zip(parts, groups, strict=True)
        mixed: Tensor = self.output(
            join_columns([self._attend(part, group) for part, group in pairs])
        )
        return mixed

    def _attend(
        self, heads: Float[Tensor, "B Q C D"], context: LayerContext
    ) -> Float[Tensor, "B _ E"]:
        """Attends from all columns or the wanted ones, after storing fresh keys and values."""
        sizes = [self.num_heads, self.num_kv_heads]
        turned, value = heads.transpose(1, 2).split([sum(sizes), self.num_kv_heads], 1)
        if self.qk_norm:
            query, key = turned.split(sizes, 1)
            turned = torch.cat([self.query_norm(query), self.key_norm(key)], 1)
        query, key = context.pointwise.rotate(turned, context.rotation).split(sizes, 1)
        if context.kv_slots is not None:
            cache, number = context.kv_slots.kv_cache.part_of(self.index)
            key = store(cache.keys, number, key, context.kv_slots)
            value = store(cache.values, number, value, context.kv_slots)
        if context.query_scale is not None:
            query = query * context.query_scale
        if context.wanted is not None:
            index = context.wanted[:, None, :, None].expand(-1, self.num_heads, -1, self.head_dim)
            query = query.gather(2, index)
        return attend(query, key, value, context.bias)


class Layer(nn.Module):
    """A pre-norm decoder block."""

    def __init__(self, config: NetworkConfig, index: int) -> None:
        """Builds one layer; the index decides whether its MLP is dense or a mixture of experts."""
        super().__init__()
        exact = config.norm_weight_in_float32
        self.attention_norm = Norm(config.hidden_size, config.norm_eps, weight_in_float32=exact)
        self.attention = Attention(config, index)
        self.mlp_norm = Norm(config.hidden_size, config.norm_eps, weight_in_float32=exact)
        self.mlp = _mlp(config, index)

    def forward(
        self, hidden: Float[Tensor, "_ _ H"], groups: Sequence[LayerContext]
    ) -> Float[Tensor, "_ _ H"]:
        """Returns all columns, or the wanted ones; keys and values are always of all columns.

        The columns are those of all groups, see `join_columns`.
        """
        update = self.attention(self.attention_norm(hidden), groups)
        hidden = take_wanted(hidden, groups) + update
        mixed: Tensor = hidden + self.mlp(self.mlp_norm(hidden), groups[0].pointwise)
        return mixed


def _mlp(config: NetworkConfig, index: int) -> MLP | MoE:
    if config.moe is not None and config.has_experts(index):
        return MoE(config.moe, config.hidden_size)
    return MLP(config.hidden_size, config.mlp_hidden_size)


def take_wanted(
    hidden: Float[Tensor, "_ _ H"], groups: Sequence[LayerContext]
) -> Float[Tensor, "_ _ H"]:
    """Returns the wanted columns of all groups, see `join_columns`."""
    wanted = [group.wanted for group in groups if group.wanted is not None]
    if not wanted:
        return hidden
    parts = split_columns(hidden, [group.size for group in groups])
    indices = [index[:, :, None].expand(-1, -1, hidden.shape[2]) for index in wanted]
    return join_columns([part.gather(1, index) for part, index in zip(parts, indices, strict=True)])
