"""Muon for matrices, AdamW for the rest."""

import re

from torch import nn
from torch.optim import AdamW, Muon, Optimizer


def make_optimisers(
    model: nn.Module, *, matrix_lr: float, other_lr: float
) -> tuple[Optimizer, ...]:
    """Gives the matrices of the layers to torch's Muon; embeddings, head and norms to AdamW.

    Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks",
    https://kellerjordan.github.io/posts/muon/.

    Args:
        model: The model whose weights are trained.
        matrix_lr: Learning rate of Muon.
        other_lr: Learning rate of AdamW.
    """
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, weight in model.named_parameters():
        is_matrix = weight.ndim == 2 and re.search(r"\blayers?\.", name) is not None
        (matrices if is_matrix else others).append(weight)
    return (
        Muon(matrices, lr=matrix_lr, weight_decay=0.0),
        AdamW(others, lr=other_lr, betas=(0.9, 0.95), weight_decay=0.0),
    )
