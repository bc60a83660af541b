"""A decoder block: attention, then an MLP or a mixture of experts."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn

from dllm_decode.models.network.attention import Attention
from dllm_decode.models.network.config import NetworkConfig
from dllm_decode.models.network.context import LayerContext
from dllm_decode.models.network.groups import join, split
from dllm_decode.models.network.mlp import MLP
from dllm_decode.models.network.moe import MoE
from dllm_decode.models.network.norm import Norm
from dllm_decode.models.network.operations import Stream


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

    def forward(self, stream: Stream, groups: Sequence[LayerContext]) -> Stream:
        """Returns all columns, or the wanted ones; keys and values are always of all columns.

        Args:
            stream: The columns of all groups, see `join`.
            groups: One context for each group.
        """
        operations = groups[0].operations
        hidden, normed = self.attention_norm(stream, operations)
        update = self.attention(normed, groups)
        hidden, normed = self.mlp_norm(Stream(_take_wanted(hidden, groups), update), operations)
        return Stream(hidden, self.mlp(normed, operations))

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


def _take_wanted(
    hidden: Float[Tensor, "_ _ H"], groups: Sequence[LayerContext]
) -> Float[Tensor, "_ _ H"]:
    wanted = [group.wanted for group in groups if group.wanted is not None]
    if not wanted:
        return hidden
    parts = split(hidden, [group.size for group in groups])
    indices = [index[:, :, None].expand(-1, -1, hidden.shape[2]) for index in wanted]
    return join([part.gather(1, index) for part, index in zip(parts, indices, strict=True)])
