"""A decoder block: attention, then an MLP or a mixture of experts."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from dllm_decode.models.network.attention import Attention
from dllm_decode.models.network.config import NetworkConfig
from dllm_decode.models.network.context import LayerContext
from dllm_decode.models.network.mlp import MLP
from dllm_decode.models.network.moe import MoE
from dllm_decode.models.network.norm import Norm
from dllm_decode.models.network.operations import LayerKV, Stream


class Layer(nn.Module):
    """A pre-norm decoder block."""

    def __init__(self, config: NetworkConfig, index: int) -> None:
        """Builds the layer.

        Args:
            config: Of the whole network.
            index: Which layer it is, from 0: some networks mix dense layers with experts.
        """
        super().__init__()
        exact = config.norm_weight_in_float32
        self.attention_norm = Norm(config.hidden_size, config.norm_eps, weight_in_float32=exact)
        self.attention = Attention(config)
        self.mlp_norm = Norm(config.hidden_size, config.norm_eps, weight_in_float32=exact)
        self.mlp = _mlp(config, index)

    def forward(
        self,
        stream: Stream,
        context: LayerContext,
        layer_kv: LayerKV | None = None,
        wanted: Int[Tensor, "B W"] | None = None,
    ) -> Stream:
        """Returns all columns, or the wanted ones; keys and values are always of all columns."""
        hidden, normed = self.attention_norm(stream, context.operations)
        update = self.attention(normed, context, layer_kv, wanted)
        stream = Stream(_take(hidden, wanted), update)
        hidden, normed = self.mlp_norm(stream, context.operations)
        return Stream(hidden, self.mlp(normed, context.operations))

    def parts(self, *, split_qkv: bool) -> dict[str, Tensor]:
        """See `Transformer.parts`."""
        return {
            "attention_norm.weight": self.attention_norm.weight.data,
            "mlp_norm.weight": self.mlp_norm.weight.data,
            **self.attention.parts(split_qkv=split_qkv),
            **self.mlp.parts(),
        }


def _mlp(config: NetworkConfig, index: int) -> MLP | MoE:
    if config.moe is not None and config.has_experts(index):
        return MoE(config.moe, config.hidden_size)
    return MLP(config.hidden_size, config.mlp_hidden_size)


def _take(
    hidden: Float[Tensor, "B Q H"], wanted: Int[Tensor, "B W"] | None
) -> Float[Tensor, "B _ H"]:
    if wanted is None:
        return hidden
    return hidden.gather(1, wanted[:, :, None].expand(-1, -1, hidden.shape[2]))
