"""A decoder block: attention, then an MLP."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from dllm_decode.models.network.attention import Attention, Norm
from dllm_decode.models.network.config import NetworkConfig
from dllm_decode.models.network.context import LayerContext
from dllm_decode.models.network.operations import LayerKV, Operations, Stream


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, shape: NetworkConfig) -> None:
        super().__init__()
        self.gate_up = nn.Linear(shape.hidden_size, 2 * shape.mlp_hidden_size, bias=False)
        self.down = nn.Linear(shape.mlp_hidden_size, shape.hidden_size, bias=False)

    def forward(
        self, hidden: Float[Tensor, "B Q H"], operations: Operations
    ) -> Float[Tensor, "B Q H"]:
        """Maps every column by itself."""
        mixed: Tensor = self.down(operations.swiglu(self.gate_up(hidden)))
        return mixed


class Layer(nn.Module):
    """A pre-norm decoder block."""

    def __init__(self, shape: NetworkConfig) -> None:
        super().__init__()
        exact = shape.norm_weight_in_float32
        self.attention_norm = Norm(shape.hidden_size, shape.norm_eps, weight_in_float32=exact)
        self.attention = Attention(shape)
        self.mlp_norm = Norm(shape.hidden_size, shape.norm_eps, weight_in_float32=exact)
        self.mlp = MLP(shape)

    def forward(
        self,
        stream: Stream,
        plan: LayerContext,
        store: LayerKV | None = None,
        wanted: Int[Tensor, "B W"] | None = None,
    ) -> Stream:
        """Returns all columns, or the wanted ones; keys and values are always of all columns."""
        hidden, normed = self.attention_norm(stream, plan.operations)
        update = self.attention(normed, plan, store, wanted)
        stream = Stream(_take(hidden, wanted), update)
        hidden, normed = self.mlp_norm(stream, plan.operations)
        return Stream(hidden, self.mlp(normed, plan.operations))

    def parts(self) -> dict[str, Tensor]:
        """See `Transformer.parts`."""
        attention, mlp = self.attention, self.mlp
        gate, up = mlp.gate_up.weight.data.chunk(2)
        named = {
            "attention_norm.weight": self.attention_norm.weight.data,
            "mlp_norm.weight": self.mlp_norm.weight.data,
            "output.weight": attention.output.weight.data,
            "gate.weight": gate,
            "up.weight": up,
            "down.weight": mlp.down.weight.data,
        }
        kv_rows = attention.num_kv_heads * attention.head_dim
        rows = [attention.num_heads * attention.head_dim, kv_rows, kv_rows]
        for kind, fused in attention.qkv.named_parameters():
            pieces = zip(("query", "key", "value"), fused.data.split(rows), strict=True)
            named |= {f"{name}.{kind}": piece for name, piece in pieces}
        if attention.qk_norm:
            named["query_norm.weight"] = attention.query_norm.weight.data
            named["key_norm.weight"] = attention.key_norm.weight.data
        return named


def _take(
    hidden: Float[Tensor, "B Q H"], wanted: Int[Tensor, "B W"] | None
) -> Float[Tensor, "B _ H"]:
    if wanted is None:
        return hidden
    return hidden.gather(1, wanted[:, :, None].expand(-1, -1, hidden.shape[2]))
