"""The MLP of a dense layer, and of a shared expert."""

from jaxtyping import Float
from torch import Tensor, nn

from dllm_decode.models.network.operations import Operations
from dllm_decode.models.network.packed import Linear


class MLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x)).

    Source: Shazeer 2020, "GLU Variants Improve Transformer", https://arxiv.org/abs/2002.05202.
    """

    def __init__(self, hidden_size: int, mlp_hidden_size: int) -> None:
        super().__init__()
        self.gate_up = Linear(hidden_size, 2 * mlp_hidden_size, bias=False)
        self.down = Linear(mlp_hidden_size, hidden_size, bias=False)

    def forward(
        self, hidden: Float[Tensor, "B Q H"], operations: Operations
    ) -> Float[Tensor, "B Q H"]:
        """Maps every column by itself."""
        mixed: Tensor = self.down(operations.swiglu(self.gate_up(hidden)))
        return mixed

    def parts(self) -> dict[str, Tensor]:
        """See `Transformer.parts`."""
        gate, up = self.gate_up.weight.data.chunk(2)
        return {"gate.weight": gate, "up.weight": up, "down.weight": self.down.weight.data}
