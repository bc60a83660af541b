"""Attention of any column to any column, through a KV cache or not."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn

from dllm_decode.models.network.config import NetworkConfig
from dllm_decode.models.network.context import LayerContext
from dllm_decode.models.network.groups import join, split
from dllm_decode.models.network.norm import Norm
from dllm_decode.models.network.operations import Heads, Projected
from dllm_decode.models.network.packed import Linear


class Attention(nn.Module):
    """Attention of any column to any column; the mask, not the module, decides who sees whom."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.num_kv_heads = config.num_kv_heads
        self.head_dim = config.head_dim
        num_rows = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        self.qkv = Linear(config.hidden_size, num_rows, bias=config.qkv_bias)
        self.output = Linear(config.num_heads * config.head_dim, config.hidden_size, bias=False)
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
        parts = split(heads, [group.size for group in groups])
        pairs = zip(parts, groups, strict=True)
        mixed: Tensor = self.output(join([self._attend(part, group) for part, group in pairs]))
        return mixed

    def _attend(
        self, heads: Float[Tensor, "B Q C D"], context: LayerContext
    ) -> Float[Tensor, "B _ E"]:
        """Attends from all columns or the wanted ones, after storing fresh keys and values."""
        scalings = (self.query_norm.scaling, self.key_norm.scaling) if self.qk_norm else None
        query, key, value = context.operations.rotate_and_store(
            Projected(heads, self.num_kv_heads, scalings), context.rotation, context.layer_kv
        )
        if context.query_scale is not None:
            query = query * context.query_scale
        if context.wanted is not None:
            index = context.wanted[:, None, :, None].expand(-1, self.num_heads, -1, self.head_dim)
            query = query.gather(2, index)
        return context.operations.attend(Heads(query, key, value), context.bias)

    def parts(self, *, split_qkv: bool) -> dict[str, Tensor]:
        """See `Transformer.parts`."""
        named = {"output.weight": self.output.weight.data}
        kv_rows = self.num_kv_heads * self.head_dim
        rows = [self.num_heads * self.head_dim, kv_rows, kv_rows]
        for kind, fused in self.qkv.named_parameters():
            if not split_qkv:
                named[f"qkv.{kind}"] = fused.data
                continue
            pieces = zip(("query", "key", "value"), fused.data.split(rows), strict=True)
            named |= {f"{name}.{kind}": piece for name, piece in pieces}
        if self.qk_norm:
            named["query_norm.weight"] = self.query_norm.weight.data
            named["key_norm.weight"] = self.key_norm.weight.data
        return named
