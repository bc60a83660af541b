"""RMSNorm, the norm of every family."""

import torch
from torch import nn

from dllm_decode.models.network.operations import Normed, Operations, Scaling, Stream


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

    @property
    def scaling(self) -> Scaling:
        """Weight and epsilon, for an operation that normalises on its way."""
        return Scaling(self.weight, self.eps, self.weight_in_float32)

    def forward(self, stream: Stream, operations: Operations) -> Normed:
        """Adds up the residual stream, and normalises the sum."""
        return operations.add_norm(stream, self.scaling)
